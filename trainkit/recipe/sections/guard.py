"""[guard]: what a run does when training breaks."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Spec


class Guard(Spec):
    """What to do when training breaks. Each incident leaves a black box, for `trainkit inspect RUN --blackbox`."""

    non_finite: Literal["stop", "skip"] = "stop"
    """When the loss, the gradient or the update of a step is not finite: end the run (`stop`), or leave parameters and
    optimizer as they were (`skip`). In float16, gradients that overflow are always skipped while the loss scale
    adapts."""
    max_skips: Count = 10
    """Steps in a row that may be skipped. After one more the run stops."""

    @property
    def in_step(self) -> bool:
        """Return whether the step itself decides something."""
        return self.non_finite == "skip"
