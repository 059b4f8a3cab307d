"""More shapes of the learning rate over the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.schedule_spec import NEVER, Schedule, ScheduleSpec, Span, check_sum, span_steps
from trainkit.recipe.spec import Count, Exponent, Fraction, PositiveRatio, Ratio, Spec


class Polynomial(ScheduleSpec):
    """A power of the share of the run that is left, from 1 to `min_ratio`."""

    type: Literal["polynomial"]
    power: Exponent = 2.0
    """1 is a straight line; above it the rate falls fastest at first."""
    min_ratio: Fraction = 0.0
    """Final learning rate, as a share of the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        return peak * ((1 - self.min_ratio) * (1 - done / rest) ** self.power + self.min_ratio)


class Exponential(ScheduleSpec):
    """A fall by the same factor in each step, from 1 to `min_ratio`."""

    type: Literal["exponential"]
    min_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Final learning rate, as a share of the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        return peak * xp.exp(math.log(self.min_ratio) * done / rest)


class ExponentialRise(ScheduleSpec):
    """A rise by the same factor in each step, from `first_ratio` to 1 in the last one: the range test of learning rates
    (Smith 2017, arXiv:1506.01186), which `trainkit find-lr` does."""

    type: Literal["exponential-rise"]
    warmup: Span = 0
    """Length of a linear rise from 0 before it: an integer is steps, a float a fraction of the run."""
    first_ratio: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """First learning rate, as a share of the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        done, rest = self.after_warmup(step, steps, xp)
        left = 1 - xp.clip(done / max(rest - 1, 1), 0.0, 1.0)
        return peak * xp.exp(math.log(self.first_ratio) * left)


class InverseSqrt(ScheduleSpec):
    """The inverse root of the step (Vaswani et al. 2017); it does not depend on the length of the run."""

    type: Literal["inverse-sqrt"]
    timescale: Count | None = None
    """Steps after which the rate is 1/sqrt(2) of the peak, counted from the end of the warm-up. If absent, those of the
    warm-up, or 10,000 without one."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        warmup = self.warmup_steps(steps)
        timescale = self.timescale or warmup or 10_000
        return peak / xp.sqrt(1 + xp.clip(step - warmup, 0, None) / timescale)


class Power(ScheduleSpec):
    """A power of the step (Shen et al. 2024, arXiv:2408.13359); it does not depend on the length of the run."""

    type: Literal["power"]
    exponent: Exponent = 0.51
    """The rate falls as step^-exponent."""
    timescale: Count = 1000
    """The step at which the rate begins to fall from the peak."""

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        return peak * (xp.maximum(step + 1, self.timescale) / self.timescale) ** -self.exponent


class PiecewiseLinear(ScheduleSpec):
    """Straight lines between points."""

    type: Literal["piecewise-linear"]
    warmup: Span = 0
    """Length of a linear rise from 0 that replaces the lines: an integer is steps, a float a fraction of the run."""
    points: Annotated[tuple[tuple[Span, Ratio], ...], Field(min_length=1)]
    """Where the lines meet: `[[0, 1.0], [0.5, 0.1], [1.0, 0.0]]` falls to a tenth of the peak in the first half, and to
    0 in the second. Integers are steps, floats fractions of the run. Before the first point and after the last one the
    rate is theirs."""

    @model_validator(mode="after")
    def _points_rise(self) -> PiecewiseLinear:
        places = [place for place, _ in self.points]
        for kind in (int, float):
            alike = [place for place in places if isinstance(place, kind)]
            if any(after <= before for before, after in pairwise(alike)):
                raise ValueError(f"the points must be in increasing order, found {places}")
        return self

    @property
    def greatest_ratio(self) -> float:
        return max(1.0 if self.warmup else 0.0, *(ratio for _, ratio in self.points))

    def check_lengths(self, steps: int, *, at: str = "schedule") -> None:
        super().check_lengths(steps, at=at)
        places = [span_steps(place, steps) for place, _ in self.points]
        if places[-1] > steps or any(after <= before for before, after in pairwise(places)):
            raise TrainkitError(
                f"{at}.points are at the steps {', '.join(map(str, places))} of {steps:,}: they must be in increasing"
                " order, and none after the last step",
                where=f"{at}.points",
                hint="give fractions of the run, such as 0.5, instead of steps",
            )

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        places = [span_steps(place, steps) for place, _ in self.points]
        ratios = [ratio for _, ratio in self.points]
        return peak * xp.interp(xp.asarray(step, dtype="float32"), xp.asarray(places, dtype="float32"),
                                xp.asarray(ratios, dtype="float32"))  # fmt: skip


class OneCycle(ScheduleSpec):
    """Up and down once (Smith & Topin 2018), as in torch: the warm-up is a cosine too, and long."""

    type: Literal["one-cycle"]
    warmup: Span = 0.3
    """Length of the rise: an integer is steps, a float a fraction of the run."""
    first_ratio: Fraction = 0.04
    """First learning rate, as a share of the peak."""
    min_ratio: Fraction = 4e-6
    """Final learning rate, as a share of the peak."""
    shape: Literal["cosine", "linear"] = "cosine"
    """Shape of both the rise and the fall."""

    def rate(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any, decay_end: Any = None) -> Any:
        top = max(self.warmup_steps(steps) - 1, 1)
        last = max(steps - 1, top + 1)
        up = self._between(self.first_ratio, 1.0, xp.clip(step / top, 0.0, 1.0), xp)
        down = self._between(1.0, self.min_ratio, xp.clip((step - top) / (last - top), 0.0, 1.0), xp)
        found = peak * xp.where(step <= top, up, down)
        cooldown = span_steps(self.cooldown, steps)
        return found * xp.clip((steps - step) / cooldown, 0.0, 1.0) if cooldown else found

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        return self.rate(step, peak=peak, steps=steps, decay_start=decay_start, xp=xp)

    def _between(self, first: float, last: float, share: Any, xp: Any) -> Any:
        if self.shape == "linear":
            return first + (last - first) * share
        return last + (first - last) / 2 * (1 + xp.cos(math.pi * share))


class ChainPart(Spec):
    """A part of a chain of schedules."""

    length: Count | Fraction
    """Steps, or as a float the fraction of the run. The last part takes what is left."""
    ratio: PositiveRatio = 1.0
    """The peak of this part, as a share of `optimizer.learning_rate`."""
    schedule: Schedule
    """The schedule of this part, as if it were a run of its own."""

    @model_validator(mode="after")
    def _is_no_chain(self) -> ChainPart:
        if isinstance(self.schedule, Chain):
            raise ValueError("a part of a chain cannot be a chain: list all parts in one")
        return self


class Chain(ScheduleSpec):
    """One schedule after the other."""

    type: Literal["chain"]
    warmup: Span = 0
    """Must be 0: each part has its own."""
    parts: Annotated[tuple[ChainPart, ...], Field(min_length=1)]
    """The schedules in their order: one `[[schedule.parts]]` each."""

    @property
    def greatest_ratio(self) -> float:
        return max(part.ratio * part.schedule.greatest_ratio for part in self.parts)

    @model_validator(mode="after")
    def _parts_fit(self) -> Chain:
        if self.warmup:
            raise ValueError(f"warmup = {self.warmup}: a chain has none; set that of its first part")
        shares = sum(part.length for part in self.parts if isinstance(part.length, float))
        if shares > 1 + 1e-9:
            raise ValueError(f"the lengths of the parts together are {shares:g} of the run, more than 1")
        return self

    def check_lengths(self, steps: int, *, at: str = "schedule") -> None:
        check_sum({f"{at}.parts.{number}.length": part.length for number, part in enumerate(self.parts)}, steps)
        for number, (part, (_, length)) in enumerate(zip(self.parts, self._spans(steps), strict=True)):
            part.schedule.check_lengths(length, at=f"{at}.parts.{number}.schedule")

    def _spans(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield the first step and the length of each part."""
        begin = 0
        for number, part in enumerate(self.parts, 1):
            last = number == len(self.parts)
            length = max(steps - begin, 1) if last else max(span_steps(part.length, steps), 1)
            yield begin, length
            begin += length

    def rate_after_warmup(self, step: Any, *, peak: float, steps: int, decay_start: Any, xp: Any) -> Any:
        found = None
        for part, (begin, length) in zip(self.parts, self._spans(steps), strict=True):
            within = xp.clip(step - begin, 0, length - 1)
            rate = part.schedule.rate(within, peak=peak * part.ratio, steps=length, decay_start=NEVER, xp=xp)
            found = rate if found is None else xp.where(step < begin, found, rate)
        return found


#: Those of this file; `Schedule` in `schedule_spec.py` lists the files.
SCHEDULES = (Polynomial, Exponential, ExponentialRise, InverseSqrt, Power, PiecewiseLinear, OneCycle, Chain)
