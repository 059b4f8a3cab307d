"""[schedule]: the learning rate over the run, as a factor of `optimizer.learning_rate`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, assert_never

from pydantic import Field, model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.schedule_spec import NEVER, ScheduleSpec, Span, span_steps
from trainkit.recipe.spec import Count, Fraction


class Cosine(ScheduleSpec):
    """Half a cosine from 1 to `min_ratio`, once or with restarts (Loshchilov & Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    min_ratio: Fraction = 0.1
    """Final learning rate, as a share of the peak."""
    restarts: Annotated[int, Field(ge=0, le=1000)] = 0
    """How often the rate jumps back to the peak, after equal parts of the run."""

    def check_lengths(self, steps: int, *, at: str = "schedule") -> None:
        super().check_lengths(steps, at=at)
        if self.restarts >= steps:
            raise TrainkitError(
                f"{at}.restarts = {self.restarts} makes {self.restarts + 1:,} parts of the {steps:,} steps there are",
                where=f"{at}.restarts",
                hint=f"give fewer than {steps:,}, or train for longer",
            )

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        if self.restarts:
            cycles = done / rest * (self.restarts + 1)
            within = xp.where(done < rest, cycles - xp.floor(cycles), 1.0)
            return peak * ((1 - self.min_ratio) * 0.5 * (1 + xp.cos(math.pi * within)) + self.min_ratio)
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
    """Length of the last phase: an integer is steps, a float a fraction of the run."""
    shape: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt"
    """Shape of the decay; 1-sqrt, which falls fastest at first, is from Hägele et al. 2024 (arXiv:2405.18392)."""
    min_ratio: Fraction = 0.0
    """Final learning rate, as a share of the peak."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Wsd:
        if isinstance(self.warmup, float) and isinstance(self.decay, float) and self.warmup + self.decay > 1:
            raise ValueError(f"decay = {self.decay} and warmup = {self.warmup} together are more than the whole run")
        if self.cooldown:
            raise ValueError(f'cooldown = {self.cooldown}: the schedule "wsd" has its decay in its place')
        return self

    @property
    def phases(self) -> dict[str, Span]:
        return {"warmup": self.warmup, "decay": self.decay}

    def decay_steps(self, steps: int) -> int:
        """Return the steps of the decay in a run of `steps`."""
        return min(max(span_steps(self.decay, steps), 1), steps - self.warmup_steps(steps))

    def decay_start(self, steps: int, *, ordered: int) -> int:
        """Return how many updates precede the decay: as planned, or fewer if it was ordered to begin earlier."""
        return min(ordered, steps - self.decay_steps(steps))

    def last_step(self, steps: int, *, decay_start: int) -> int:
        return self.decay_start(steps, ordered=decay_start) + self.decay_steps(steps)

    def decay_until(self, end: int, *, step: int, before: tuple[int, int]) -> int:
        start, planned_end = before
        if step <= start:
            return max(end - self.decay_steps(end), step)
        done = (step - start) / max(planned_end - start, 1)
        return round((step - done * end) / (1 - done)) if done < 1 else start

    def rate(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any, decay_end: Any = None) -> Any:
        before_decay = super().rate(step, peak=peak, steps=steps, decay_start=decay_start, xp=xp)
        return before_decay * self._share_left(step, steps, decay_start, decay_end, xp)

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        return peak

    def _share_left(self, step: Any, steps: int, decay_start: Any, decay_end: Any, xp: Any) -> Any:
        """Return the share of the peak that the decay leaves: 1 until it begins, `min_ratio` at its end."""
        decay = self.decay_steps(steps)
        start, length = xp.minimum(decay_start, steps - decay), max(decay, 1)
        if decay_end is not None:
            is_ordered = decay_end < NEVER
            start = xp.where(is_ordered, decay_start, start)
            length = xp.where(is_ordered, xp.maximum(decay_end - decay_start, 1), length)
        done = xp.clip((step - start) / length, 0.0, 1.0)
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


#: Those of this file; `Schedule` lists the files.
SCHEDULES = (Cosine, LinearDecay, Constant, Wsd)
