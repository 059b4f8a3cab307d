"""What must not go on unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainkit.errors import FAILED, TrainkitError

WATCHED = ("train/loss", "gradients/norm", "parameters/norm")


def check_finite(step: int, metrics: Mapping[str, float]) -> None:
    """Raise `TrainkitError` where the loss, the gradient or a parameter is not a finite number: all that follows would
    be lost. The parameters are those after the step, so that none that are broken are ever saved.
    """
    wrong = [name for name in WATCHED if not math.isfinite(metrics[name])]
    if wrong:
        raise TrainkitError(
            " and ".join(f"{name} is {metrics[name]}" for name in wrong) + "; the run was stopped",
            where=f"step {step}",
            hint="resume from an earlier checkpoint with a lower optimizer.learning_rate, a longer schedule.warmup "
            "or a lower train.max_grad_norm",
            exit_code=FAILED,
        )
