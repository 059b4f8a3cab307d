"""A metric over steps in bounded memory: every point, or, in a long run, buckets of neighbouring points.

Beyond `LIMIT` points, neighbours are merged two by two, then four by four, and so on. A bucket keeps its first and last
points, the lowest and the highest with their steps (a line drawn through these looks like one through all points: the
M4 aggregation of Jugel et al., VLDB 2014), their sum and number, and the first step that was not finite.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf, isfinite, isnan, nan
from operator import add, ge, le
from typing import NamedTuple

#: The number of buckets at which pairs are merged. A bucket has 88 bytes; a column of a wide screen has over twenty.
LIMIT = 8192


class Extreme(NamedTuple):
    """The lowest or the highest value of a metric, and the step that has it."""

    value: float
    step: float


class Series:
    """One metric over steps, which only grow. `steps` and `values` are the last point of each bucket.

    While `stride` is 1, every point is its own bucket and the other arrays are empty, because they would be equal.
    `np.frombuffer(series.values)` is a view without a copy; an array cannot grow while such a view lives.

    Attributes:
        first_steps, firsts: the first point of each bucket.
        lows, low_at, highs, high_at: the lowest and highest finite value, each with the first step that has it; the
            values are infinite (+, -) if no point is finite.
        totals, counts: sum and number of the finite points.
        broken: the step of the first point that is not finite; nan if all are.
        stride: the points in a full bucket.
        version: grows with every change, so that a drawing knows whether it is out of date.
    """

    #: The arrays of a bucket, in the order in which an index of the log holds them.
    FIELDS = (
        "steps", "values", "first_steps", "firsts", "lows", "low_at", "highs", "high_at", "totals", "counts", "broken",
    )  # fmt: skip
    __slots__ = (*FIELDS, "_limit", "_room", "stride", "version")

    steps: array[float]
    values: array[float]
    first_steps: array[float]
    firsts: array[float]
    lows: array[float]
    low_at: array[float]
    highs: array[float]
    high_at: array[float]
    totals: array[float]
    counts: array[float]
    broken: array[float]

    def __init__(self, *, stride: int = 1, limit: int | None = LIMIT) -> None:
        """Without a `limit`, buckets are never merged."""
        for name in self.FIELDS:
            setattr(self, name, array("d"))
        self.stride, self._limit = stride, limit
        self._room = 0  # free places in the last bucket
        self.version = 0

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: float, value: float) -> None:
        """Append a value. A step that is not beyond the last one replaces everything from it on."""
        if self.steps and step <= self.steps[-1]:
            self.cut(step - 1)
        self.version += 1
        if self._room:
            self._room -= 1
            self._put(step, value)
            return
        self.steps.append(step)
        self.values.append(value)
        if self.stride > 1:
            for name, part in zip(self.FIELDS[2:], _alone(step, value), strict=True):
                getattr(self, name).append(part)
            self._room = self.stride - 1
        if len(self.steps) == self._limit:
            self.halve()

    def pack(self, steps: Sequence[float], values: Sequence[float]) -> None:
        """Append one bucket of these points, all beyond the present ones."""
        self._spread()
        finite = values if all(map(isfinite, values)) else [value for value in values if isfinite(value)]
        low, high = min(finite, default=inf), max(finite, default=-inf)
        low_at, high_at = (steps[values.index(v)] if finite else steps[0] for v in (low, high))
        broken = nan if finite is values else next(s for s, v in zip(steps, values, strict=True) if not isfinite(v))
        bucket = (
            steps[-1], values[-1], steps[0], values[0], low, low_at, high, high_at, sum(finite), len(finite), broken,
        )  # fmt: skip
        for name, part in zip(self.FIELDS, bucket, strict=True):
            getattr(self, name).append(part)
        self._room = 0
        self.version += 1

    def cut(self, after: float) -> None:
        """Remove the points beyond step `after`, with all of a bucket that has points on both sides: a short gap is
        honest, a mixture is not."""
        keep = bisect_right(self.steps, after)
        for name in self.FIELDS:
            del getattr(self, name)[keep:]
        self._room = 0
        self.version += 1

    def bucket_across(self, after: float) -> float | None:
        """Return the first step of the bucket that `cut(after)` would remove although it begins at or before `after`;
        None without one."""
        at = bisect_right(self.steps, after)
        begins = self.first_steps[at : at + 1]
        return begins[0] if begins and begins[0] <= after else None

    def extend(self, other: Series) -> None:
        """Append the buckets of another series, replacing everything from its first step on. `other` must not be used
        afterwards."""
        first = other.first_steps or other.steps
        if self.steps and first and first[0] <= self.steps[-1]:
            self.cut(first[0] - 1)
        if other.stride > 1 or self.stride > 1:
            self._spread()
            other._spread()
        for name in self.FIELDS:
            getattr(self, name).extend(getattr(other, name))
        self.stride, self._room = max(self.stride, other.stride), 0
        self.version += 1
        while self._limit is not None and len(self.steps) >= self._limit:
            self.halve()

    @property
    def last(self) -> float | None:
        """Return the newest value; None without points."""
        return self.values[-1] if self.values else None

    @property
    def total(self) -> float:
        """Return the sum of the finite points."""
        return sum(self.totals if self.stride > 1 else filter(isfinite, self.values))

    @property
    def lowest(self) -> Extreme | None:
        """Return the lowest finite value and the first step that has it; None without one."""
        values, steps = (self.lows, self.low_at) if self.stride > 1 else (self.values, self.steps)
        return _extreme(min, values, steps)

    @property
    def highest(self) -> Extreme | None:
        """Return the highest finite value and the first step that has it; None without one."""
        values, steps = (self.highs, self.high_at) if self.stride > 1 else (self.values, self.steps)
        return _extreme(max, values, steps)

    def halve(self) -> None:
        """Merge every two buckets into one. A last bucket without a neighbour takes the next points."""
        self._spread()
        odd = len(self.steps) % 2
        self._room += self.stride if odd else 0
        self.stride *= 2
        keep = slice(len(self.steps) - odd, None)
        for values, at, better in ((self.lows, self.low_at, le), (self.highs, self.high_at, ge)):
            first = list(map(better, values[::2], values[1::2]))
            for chosen in (values, at):
                left, right = chosen[::2], chosen[1::2]
                better_ones = [a if one else b for one, a, b in zip(first, left, right, strict=False)]
                chosen[:] = array("d", better_ones) + chosen[keep]
        pairs = zip(self.broken[::2], self.broken[1::2], strict=False)
        self.broken[:] = array("d", [b if a != a else a for a, b in pairs]) + self.broken[keep]
        for sums in (self.totals, self.counts):
            sums[:] = array("d", map(add, sums[::2], sums[1::2])) + sums[keep]
        for firsts in (self.first_steps, self.firsts):
            firsts[:] = firsts[::2]
        for lasts in (self.steps, self.values):
            lasts[:] = lasts[1::2] + lasts[keep]
        self.version += 1

    def _spread(self) -> None:
        """Fill the other arrays when a series that has kept single points begins to merge."""
        if self.stride > 1 or self.counts:
            return
        for name in ("first_steps", "low_at", "high_at"):
            getattr(self, name).extend(self.steps)
        for name in ("firsts", "lows", "highs", "totals"):
            getattr(self, name).extend(self.values)
        self.counts.extend(array("d", [1.0]) * len(self))
        self.broken.extend(array("d", [nan]) * len(self))
        for i in [] if all(map(isfinite, self.values)) else range(len(self)):
            if not isfinite(self.values[i]):
                alone = _alone(self.steps[i], self.values[i])
                for name, part in zip(self.FIELDS[2:], alone, strict=True):
                    getattr(self, name)[i] = part

    def _put(self, step: float, value: float) -> None:
        """Add a point to the last bucket."""
        self.steps[-1], self.values[-1] = step, value
        if not isfinite(value):
            self.broken[-1] = step if isnan(self.broken[-1]) else self.broken[-1]
            return
        if value < self.lows[-1]:
            self.lows[-1], self.low_at[-1] = value, step
        if value > self.highs[-1]:
            self.highs[-1], self.high_at[-1] = value, step
        self.totals[-1] += value
        self.counts[-1] += 1


def _alone(step: float, value: float) -> tuple[float, ...]:
    """Return the arrays of a bucket with one point, except `steps` and `values`."""
    if isfinite(value):
        return step, value, value, step, value, step, value, 1.0, nan
    return step, value, inf, step, -inf, step, 0.0, 0.0, step


def _extreme(best: Callable[..., float | None], values: array[float], steps: array[float]) -> Extreme | None:
    value = best(filter(isfinite, values), default=None)
    return None if value is None else Extreme(value, steps[values.index(value)])
