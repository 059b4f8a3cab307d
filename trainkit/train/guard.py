"""What must not go on unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainkit.errors import FAILED, TrainkitError


class NotFinite(TrainkitError):
    """The state is worth nothing any more: it must not be saved."""


WATCHED = ("train/loss", "gradients/norm", "parameters/norm")
LOSS_SCALE = "precision/loss_scale"


def check_finite(step: int, metrics: Mapping[str, float]) -> None:
    """Raise `NotFinite` where the loss, the gradient or a parameter is not a finite number: all that follows would
    be lost. The parameters are those after the step, so that none that are broken are ever saved. A step that float16
    overflowed in has changed no parameter; it is nothing to raise before its loss scale is less than 1.
    """
    wrong = [name for name in WATCHED if name in metrics and not math.isfinite(metrics[name])]
    scale = metrics.get(LOSS_SCALE)
    if scale is not None and scale >= 1 and "gradients/norm" in wrong and "parameters/norm" not in wrong:
        return  # the step was passed over, and the next one tries with half the scale
    if scale is not None and scale < 1:
        raise NotFinite(
            f"{LOSS_SCALE} fell to {scale:g}: gradients overflow float16 even where the loss is not scaled up",
            where=f"step {step}",
            hint='precision.compute = "bfloat16" or "float32" has the range; or resume from an earlier checkpoint with '
            "a lower optimizer.learning_rate",
            exit_code=FAILED,
        )
    if wrong:
        raise NotFinite(
            " and ".join(f"{name} is {metrics[name]}" for name in wrong) + "; the run was stopped",
            where=f"step {step}",
            hint="resume from an earlier checkpoint with a lower optimizer.learning_rate, a longer schedule.warmup "
            "or a lower train.max_grad_norm",
            exit_code=FAILED,
        )
