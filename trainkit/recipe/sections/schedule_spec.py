"""What every schedule has, and what the rest of trainkit asks of it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.spec import Fraction, Index, Spec
from trainkit.recipe.union import OneOf

Span = Index | Fraction
"""An integer is steps, a float a fraction of the run."""

#: The start of a decay that nobody has requested: later than any step.
NEVER = 2**31 - 1


class ScheduleSpec(Spec):
    """What every schedule has, and what the rest of trainkit asks of it: a linear warm-up, then a shape of its own, and
    a cool-down if asked.

    The formulas take an array namespace, `xp`: jax.numpy in training, numpy where only a number is needed.
    """

    type: str
    warmup: Span = 0.02
    """Length of the linear rise from 0: an integer is steps, a float a fraction of the run."""
    cooldown: Span = 0
    """Length of a last phase in which the rate falls in a straight line to 0, whatever the shape: an integer is steps,
    a float a fraction of the run."""

    @model_validator(mode="after")
    def _warmup_and_cooldown_fit(self) -> ScheduleSpec:
        both = (self.warmup, self.cooldown)
        if all(isinstance(span, float) for span in both) and sum(both) > 1:
            raise ValueError(
                f"warmup = {self.warmup} and cooldown = {self.cooldown} together are more than the whole run"
            )
        return self

    def warmup_steps(self, steps: int) -> int:
        """Return the steps of the warm-up in a run of `steps`."""
        return min(span_steps(self.warmup, steps), steps)

    @property
    def phases(self) -> dict[str, Span]:
        """Return the lengths of the phases that follow one another, by key."""
        return {"warmup": self.warmup, "cooldown": self.cooldown}

    @property
    def greatest_ratio(self) -> float:
        """Return the greatest multiple of the peak that it can reach."""
        return 1.0

    def check_lengths(self, steps: int, *, at: str = "schedule") -> None:
        """Raise TrainkitError if the phases are longer than the run of `steps`. `at` is the key of this schedule."""
        check_sum({f"{at}.{key}": span for key, span in self.phases.items()}, steps)

    def last_step(self, steps: int, *, decay_start: int) -> int:
        """Return the last step of a run of `steps` whose decay was requested to begin after `decay_start` steps."""
        return steps

    def decay_start(self, steps: int, *, ordered: int) -> int | None:
        """Return how many updates precede the decay; None if a decay cannot be requested.

        Args:
            ordered: where the decay was requested to begin; `NEVER` if it was not.
        """
        return None

    def decay_until(self, end: int, *, step: int, before: tuple[int, int]) -> int:
        """Return where the decay begins if, after `step`, the run is ordered to end at `end`.

        If the decay has begun, it is a start with which the rate continues from where it is.

        Args:
            before: where the decay began, or would have begun, and ended until now.
        """
        raise AssertionError(f"only a schedule with a decay is asked, not {self.type}")

    def rate(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any, decay_end: Any = None) -> Any:
        """Return the learning rate of the update after `step` others, in a run of `steps`.

        The first update has 1/warmup of the peak, not 0; the last one is as near to the end value as the shape allows.

        Args:
            step: updates done, from 0: a number or an array.
            peak: the learning rate at the end of the warm-up.
            decay_start: where the decay was ordered to begin; `NEVER` if it was not.
            decay_end: where a run that ends in time was ordered to end; `NEVER` if it was not yet, None for other runs.
            xp: the array namespace, numpy or jax.numpy.
        """
        warmup = self.warmup_steps(steps)
        after = self.rate_after_warmup(step, peak=peak, steps=steps, decay_start=decay_start, xp=xp)
        if warmup:
            first, rising = peak / warmup, max(warmup - 1, 1)
            left = 1 - xp.clip(step, 0, rising) / rising
            after = xp.where(step < warmup, (first - peak) * left + peak, after)
        if cooldown := span_steps(self.cooldown, steps):
            after = after * xp.clip((steps - step) / cooldown, 0.0, 1.0)
        return after

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


#: Any schedule of the recipe language.
Schedule: TypeAlias = Annotated[
    ScheduleSpec,
    OneOf(
        "cosine", "trainkit.recipe.sections.schedule:SCHEDULES", "trainkit.recipe.sections.schedule_shapes:SCHEDULES"
    ),
]


def span_steps(span: int | float, steps: int) -> int:
    """Return the steps of a span in a run of `steps`."""
    return span if isinstance(span, int) else round(span * steps)


def check_sum(spans: Mapping[str, Span], steps: int) -> None:
    """Raise TrainkitError if spans that follow one another are longer than the `steps` that they are part of."""
    fixed = sum(span for span in spans.values() if isinstance(span, int))
    shares = sum(span for span in spans.values() if isinstance(span, float))
    needed = fixed + shares * steps
    if needed <= steps + 1e-6 * steps:
        return
    given = {key: span for key, span in spans.items() if span}
    listed = " and ".join(f"{key} = {span}" for key, span in given.items())
    many = len(given) > 1
    longer = f", or train for at least {math.ceil(fixed / (1 - shares)):,} steps" if shares < 1 else ""
    raise TrainkitError(
        f"{listed} {'together are' if many else 'is'} more than the {steps:,} steps there are",
        where=next((key for key, span in given.items() if isinstance(span, int)), next(iter(given))),
        hint=f"give at most {steps:,} steps{' in all' if many else ''}, or fractions such as 0.1{longer}",
    )
