"""[guard]: what a run does when training breaks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainkit.recipe.spec import Count, Positive, Spec


class Guard(Spec):
    """What to do when training breaks. Each incident leaves a black box, for `trainkit inspect RUN --blackbox`."""

    non_finite: Literal["stop", "skip", "rollback"] = "stop"
    """When the loss, the gradient or the update of a step is not finite: end the run (`stop`), leave parameters and
    optimizer as they were (`skip`), or continue from the last good checkpoint without the last batches (`rollback`).
    In float16, gradients that overflow are always skipped while the loss scale adapts."""
    spike: Literal["stop", "skip", "rollback"] | None = None
    """The same when the loss of a step is far above the last ones: its robust z-score is above `threshold`. If absent,
    an alert says so and training continues."""
    divergence: Literal["stop", "rollback"] | None = None
    """The same when the loss rises slowly and stays finite: the median of the last `window` losses is above the lowest
    such median of the run, by `threshold` in the same units. If absent, training continues."""
    threshold: Positive = 6.0
    """Robust z-score above which a loss is a spike: 0.6745 times its distance from the median of the last losses, in
    median distances from that median (Iglewicz and Hoaglin 1993)."""
    window: Annotated[int, Field(ge=30, le=1 << 20)] = 200
    """How many losses a new one is compared with. Nothing is a spike before there are 30."""
    max_skips: Count = 10
    """Steps in a row that may be skipped. After one more the run stops."""
    leave_out: Count = 16
    """How many batches a rollback leaves out: that of the step that broke and those before it; at least `window` of
    them after a divergence. Their steps change nothing but their number, so that no other batch or learning rate
    changes."""
    max_rollbacks: Count = 3
    """How often a run may be rolled back. After that it stops."""
    stalled_minutes: Positive | None = None
    """Minutes without a completed step after which the stacks of all threads are written into the run's `blackbox/`,
    and an alert. Evaluations, saves, samples and pauses do not count. If absent, nobody watches."""
    stalled: Literal["stop"] | None = None
    """What follows a stall besides: end the trainer at once (`stop`), so that the run can be resumed from its newest
    checkpoint. If absent, the trainer keeps waiting."""

    @model_validator(mode="after")
    def _knows_what_a_stall_is(self) -> Guard:
        if self.stalled is not None and self.stalled_minutes is None:
            raise ValueError("guard.stalled needs guard.stalled_minutes: set guard.stalled_minutes = 30")
        return self

    @property
    def in_step(self) -> bool:
        """Return whether the step itself decides something."""
        return self.non_finite == "skip" or self.remembers_losses

    @property
    def goes_back(self) -> int | None:
        """Return how many steps a rollback may go back beyond a checkpoint's age; None if there is none."""
        if self.divergence == "rollback":
            return max(self.leave_out, self.window)
        return self.leave_out if "rollback" in (self.non_finite, self.spike) else None

    @property
    def memory(self) -> int | None:
        """Return how many losses the state holds; None if it holds nothing of the guard.

        A resume that changes this number forgets the losses.
        """
        return (self.window if self.remembers_losses else 0) if self.in_step else None

    @property
    def remembers_losses(self) -> bool:
        """Return whether losses are compared with earlier ones."""
        return self.spike is not None or self.divergence is not None
