"""[schedule]: the learning rate over the run, as a factor of `optimizer.learning_rate`."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, assert_never

from pydantic import Field, model_validator

from trainkit.recipe.spec import Count, Fraction, Spec, union_of

Span = Annotated[int, Field(ge=0)] | Fraction
"""An integer is steps, a float a fraction of the run."""

#: The start of a decay that nobody has requested: later than any step.
NEVER = 2**31 - 1


class ScheduleSpec(Spec):
    """What every schedule has, and what the rest of trainkit asks of it: a linear warm-up, then a shape of its own.

    The formulas take an array namespace, `xp`: jax.numpy in training, numpy where only a number is needed.
    """

    type: str
    warmup: Span = 0.02
    """Length of the linear rise from 0: an integer is steps, a float a fraction of the run."""

    def warmup_steps(self, steps: int) -> int:
        """Return the steps of the warm-up in a run of `steps`."""
        return min(_counted(self.warmup, steps), steps)

    def last_step(self, steps: int, *, decay_start: int) -> int:
        """Return the last step of a run of `steps` whose decay was requested to begin after `decay_start` steps."""
        return steps

    def decay_start(self, steps: int, *, ordered: int) -> int | None:
        """Return how many updates precede the decay; None if a decay cannot be requested.

        Args:
            ordered: where the decay was requested to begin; `NEVER` if it was not.
        """
        return None

    def rate(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        """Return the learning rate of the update after `step` others, in a run of `steps`.

        The first update has 1/warmup of the peak, not 0; the last one is as near to the end value as the shape allows.

        Args:
            step: updates done, from 0: a number or an array.
            peak: the learning rate at the end of the warm-up.
            decay_start: where the decay was ordered to begin; `NEVER` if it was not.
            xp: the array namespace, numpy or jax.numpy.
        """
        warmup = self.warmup_steps(steps)
        after = self.rate_after_warmup(step, peak=peak, steps=steps, decay_start=decay_start, xp=xp)
        if warmup == 0:
            return after
        first, rising = peak / warmup, max(warmup - 1, 1)
        left = 1 - xp.clip(step, 0, rising) / rising
        return xp.where(step < warmup, (first - peak) * left + peak, after)

    @abstractmethod
    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        """Return the result of `rate`, which calls this, for steps after the warm-up.

        It is also evaluated at earlier steps, where its value has no effect but must be finite.
        """

    def after_warmup(self, step: Any, steps: int, xp: Any) -> tuple[Any, int]:
        """Return (updates since the warm-up, updates after the warm-up in a run of `steps`); the first never exceeds
        the second."""
        warmup = self.warmup_steps(steps)
        rest = max(steps - warmup, 1)
        return xp.clip(step - warmup, 0, rest), rest


class Cosine(ScheduleSpec):
    """Half a cosine from 1 to `min_ratio` (Loshchilov & Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    min_ratio: Fraction = 0.1
    """Final learning rate, as a share of the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        cosine = 0.5 * (1 + xp.cos(math.pi * done / rest))
        return peak * ((1 - self.min_ratio) * cosine + self.min_ratio)


class LinearDecay(ScheduleSpec):
    """A straight line from 1 to `min_ratio`."""

    type: Literal["linear"]
    min_ratio: Fraction = 0.1
    """Final learning rate, as a share of the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        end = peak * self.min_ratio
        return (peak - end) * (1 - done / rest) + end


class Constant(ScheduleSpec):
    """The peak, to the end."""

    type: Literal["constant"]

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        return peak


class Wsd(ScheduleSpec):
    """Warm-up, stable, decay: at the peak until a last phase (Hu et al. 2024, arXiv:2404.06395).

    `trainkit send RUN decay` starts the decay early; the run then ends when the decay ends.
    """

    type: Literal["wsd"]
    decay: Count | Annotated[float, Field(gt=0, le=1)] = 0.2
    """Length of the last phase: an integer is steps, a float a fraction of the run; at most what the warm-up leaves."""
    shape: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt"
    """Shape of the decay; 1-sqrt, which falls fastest at first, is from Hägele et al. 2024 (arXiv:2405.18392)."""
    min_ratio: Fraction = 0.0
    """Final learning rate, as a share of the peak."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Wsd:
        if isinstance(self.warmup, float) and isinstance(self.decay, float) and self.warmup + self.decay > 1:
            raise ValueError(f"decay = {self.decay} and warmup = {self.warmup} together are more than the whole run")
        return self

    def decay_steps(self, steps: int) -> int:
        """Return the steps of the decay in a run of `steps`."""
        return min(max(_counted(self.decay, steps), 1), steps - self.warmup_steps(steps))

    def decay_start(self, steps: int, *, ordered: int) -> int:
        """Return how many updates precede the decay: as planned, or fewer if it was ordered to begin earlier."""
        return min(ordered, steps - self.decay_steps(steps))

    def last_step(self, steps: int, *, decay_start: int) -> int:
        return self.decay_start(steps, ordered=decay_start) + self.decay_steps(steps)

    def rate(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        before_decay = super().rate(step, peak=peak, steps=steps, decay_start=decay_start, xp=xp)
        return before_decay * self._share_left(step, steps, decay_start, xp)

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        return peak

    def _share_left(self, step: Any, steps: int, decay_start: Any, xp: Any) -> Any:
        """Return the share of the peak that the decay leaves: 1 until it begins, `min_ratio` at its end."""
        decay = self.decay_steps(steps)
        start = xp.minimum(decay_start, steps - decay)
        done = xp.clip((step - start) / max(decay, 1), 0.0, 1.0)
        match self.shape:
            case "1-sqrt":
                left = 1 - xp.sqrt(done)
            case "linear":
                left = 1 - done
            case "cosine":
                left = (1 + xp.cos(math.pi * done)) / 2
            case _:
                assert_never(self.shape)
        return self.min_ratio + (1 - self.min_ratio) * left


def _counted(span: int | float, steps: int) -> int:
    return span if isinstance(span, int) else round(span * steps)


#: Every schedule of the recipe language.
SCHEDULES = (Cosine, LinearDecay, Constant, Wsd)

if TYPE_CHECKING:
    Schedule: TypeAlias = ScheduleSpec
else:
    Schedule = union_of("cosine", *SCHEDULES)
