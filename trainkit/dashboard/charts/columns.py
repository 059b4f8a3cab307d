"""What of a series falls into each dot column of a chart: a few passes of numpy over its buckets.

The points of each column are reduced to the first, the last, the lowest and the highest (the min/max decimation of
waveform displays; M4 of Jugel et al., VLDB 2014): a spike is never lost, however many points share its column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainkit.events.series import Series

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
#: Columns on each side that count for the trend: a share of all of them.
REACH = 1 / 40


class StepRange(NamedTuple):
    """The steps `low` to `high`, the middles of the first and of the last column. With `log`, decades are equally wide
    and steps below 1 have no place."""

    low: float
    high: float
    log: bool = False

    def share(self, steps: Floats) -> Floats:
        """How far from left to right each step lies: 0 to 1 within the window."""
        if self.high <= self.low:
            return np.full(np.shape(steps), 0.5)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.log(np.maximum(steps, 0) / self.low) / np.log(self.high / self.low)
        return (steps - self.low) / (self.high - self.low)

    def share_of(self, step: float) -> float:
        """The same for one step."""
        return float(self.share(np.asarray(step, dtype=np.float64)))

    def step(self, share: float) -> float:
        """The step that lies so far from left to right."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def borders(self, columns: int) -> Floats:
        """The steps where `columns` columns begin, and the end of the last."""
        if self.high <= self.low:
            return np.where(np.arange(columns + 1) <= columns // 2, -np.inf, np.inf)
        share = (np.arange(columns + 1) - 0.5) / max(1, columns - 1)
        if self.log:
            return np.asarray(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class Points:
    """The points of a series that must be drawn: of a bucket its first, lowest, highest and last.

    Attributes:
        x, y: those points, x ascending; some may stand there twice.
        broken: steps of points that are not finite, or, on a log scale, not positive.
        at, total, count: for the means: where each bucket lies, sum and number of its points that can be drawn.
        log: whether they are for a logarithmic scale; they themselves are as they were measured.
    """

    x: Floats
    y: Floats
    broken: Floats
    at: Floats
    total: Floats
    count: Floats
    log: bool


@dataclass(frozen=True)
class Envelope:
    """What the points of each dot column amount to; only columns that hold points, from left to right.

    `broken` are all columns that hold a value which cannot be drawn. `total` and `count` are those of every column of
    the chart. With `log`, the values but `total` are log10 of what was measured.
    """

    columns: Ints
    low: Floats
    high: Floats
    first: Floats
    last: Floats
    broken: Ints
    total: Floats
    count: Floats
    log: bool = False


def points(series: Series, *, low: float = -np.inf, high: float = np.inf, log: bool = False) -> Points:
    """The points of the buckets that reach into the steps `low` to `high`, and of the next bucket on each side.

    Copies: the series can go on growing.
    """
    steps = np.frombuffer(series.steps)
    begin = max(0, int(np.searchsorted(steps, low)) - 1)
    end = int(np.searchsorted(steps, high, side="right")) + 2
    x = steps[begin:end]
    if series.stride == 1:
        y = np.frombuffer(series.values)[begin:end]
        good = _drawable(y, log)
        return Points(x[good], y[good], x[~good], x[good], y[good], np.ones(int(good.sum())), log)

    def part(name: str) -> Floats:
        return np.frombuffer(getattr(series, name))[begin:end]

    low_first = part("low_at") <= part("high_at")
    all_x, all_y = np.empty((len(x), 4)), np.empty((len(x), 4))
    all_x[:, 0], all_x[:, 3] = part("first_steps"), x
    all_y[:, 0], all_y[:, 3] = part("firsts"), part("values")
    all_x[:, 1], all_x[:, 2] = np.minimum(part("low_at"), part("high_at")), np.maximum(part("low_at"), part("high_at"))
    all_y[:, 1] = np.where(low_first, part("lows"), part("highs"))
    all_y[:, 2] = np.where(low_first, part("highs"), part("lows"))
    flat_x, flat_y = all_x.ravel(), all_y.ravel()
    good, wrong, broken = _drawable(flat_y, log), part("broken"), np.empty(0)
    if not good.all() or not np.isnan(wrong).all():
        broken = np.sort(np.concatenate([flat_x[~good], wrong[~np.isnan(wrong)]]))
        flat_x, flat_y = flat_x[good], flat_y[good]
    middle = (part("first_steps") + x) / 2
    return Points(flat_x, flat_y, broken, middle, part("totals").copy(), part("counts").copy(), log)


def envelope(of: Points, *, window: StepRange, columns: int) -> Envelope:
    """Reduce the points to `columns` dot columns of the window.

    Where the line through the points crosses an edge of the window, it has a point there.
    """
    borders = window.borders(columns)
    x, y = _within(of, borders, window)
    broken = np.unique(_column(of.broken, borders))
    total, count = _sums(of, borders)
    starts = np.searchsorted(x, borders)
    used = np.flatnonzero(np.diff(starts))
    if not len(used):
        none = np.empty(0)
        return Envelope(used, none, none, none, none, broken, total, count, of.log)
    begin, end = starts[used], starts[used + 1]
    y = y[: end[-1]]
    values = np.minimum.reduceat(y, begin), np.maximum.reduceat(y, begin), y[begin], y[end - 1]
    if of.log:
        low, high, first, last = (np.log10(value) for value in values)
    else:
        low, high, first, last = values
    return Envelope(used, low, high, first, last, broken, total, count, of.log)


def trend(of: Envelope) -> Envelope:
    """A smooth line through the means of the columns: local linear regression over a few of them.

    Unlike a moving average it is not drawn inwards at the ends, where a loss falls steeply (Cleveland 1979).
    """
    columns = len(of.count)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = of.total / of.count
        mean = np.log10(mean) if of.log else mean
    there = np.isfinite(mean)
    count, total = np.where(there, of.count, 0.0), np.where(there, of.count * mean, 0.0)
    reach = max(1, round(columns * REACH))
    offset = np.arange(-3 * reach, 3 * reach + 1)
    weight = np.exp(-0.5 * (offset / reach) ** 2)

    def around(values: Floats, power: int) -> Floats:
        padded = np.zeros(columns + 6 * reach)
        padded[3 * reach : -3 * reach] = values
        return np.asarray(np.correlate(padded, weight * offset**power, "valid")[there], dtype=np.float64)

    n0, n1, n2 = (around(count, power) for power in (0, 1, 2))
    t0, t1 = around(total, 0), around(total, 1)
    spread = n0 * n2 - n1**2
    flat = spread <= 1e-9 * n0**2
    smooth = np.where(flat, t0 / n0, (n2 * t0 - n1 * t1) / np.where(flat, 1, spread))
    return replace(of, columns=np.flatnonzero(there), low=smooth, high=smooth, first=smooth, last=smooth)


def moving_average(series: Series, decay: float, *, exact: Series | None = None, log: bool = False) -> Points:
    """The exponential moving average over the finite points, without the pull towards zero of its beginning (Kingma and
    Ba, "Adam", ICLR 2015, section 3). A bucket counts as so many points of its mean.

    From the first step of `exact` on, its points are taken instead of the buckets.
    """
    parts = [_means(series)] if exact is None else [_means(series, before=exact.steps[0]), _means(exact)]
    x, mean, count = (np.concatenate([part[n] for part in parts]) for n in range(3))
    kept = decay**count
    value, past = (1 - kept) * mean, kept.copy()
    # each pass joins runs of buckets twice as long: all of them after log2(n) passes
    reach = 1
    while reach < len(x) and past[reach:].any():
        value[reach:] += past[reach:] * value[:-reach]
        past[reach:] *= past[:-reach]
        reach *= 2
    y = value / (1 - past)
    good = _drawable(y, log)
    none = np.empty(0)
    return Points(x[good], y[good], none, none, none, none, log)


def _means(series: Series, *, before: float = np.inf) -> tuple[Floats, Floats, Floats]:
    """(last step, mean, number of points) of the buckets with finite points that end before a step."""
    steps, values = np.frombuffer(series.steps), np.frombuffer(series.values)
    if series.stride == 1:
        there = np.isfinite(values) & (steps < before)
        return steps[there], values[there], np.ones(int(there.sum()))
    count = np.frombuffer(series.counts)
    there = (count > 0) & (steps < before)
    return steps[there], np.frombuffer(series.totals)[there] / count[there], count[there]


def _drawable(y: Floats, log: bool) -> npt.NDArray[np.bool_]:
    return np.isfinite(y) & (y > 0) if log else np.isfinite(y)


def _within(of: Points, borders: Floats, window: StepRange) -> tuple[Floats, Floats]:
    """The points within the borders, and one on each edge that the line between two points crosses."""
    begin, end = np.searchsorted(of.x, borders[0]), np.searchsorted(of.x, borders[-1])
    x, y = of.x[begin:end], of.y[begin:end]
    for edge, place in ((window.low, begin), (window.high, end)):
        if not 0 < place < len(of.x):
            continue
        (x0, x1), (y0, y1) = of.x[place - 1 : place + 1], of.y[place - 1 : place + 1]
        if np.searchsorted(of.broken, x0) == np.searchsorted(of.broken, x1):
            share = float(np.clip((edge - x0) / (x1 - x0), 0, 1))
            crossing = y0 * (y1 / y0) ** share if of.log else y0 + share * (y1 - y0)
            where = 0 if edge == window.low else len(x)
            x, y = np.insert(x, where, edge), np.insert(y, where, crossing)
    return x, y


def _sums(of: Points, borders: Floats) -> tuple[Floats, Floats]:
    """Sum and number of the points of each column."""
    starts = np.searchsorted(of.at, borders)
    used = np.flatnonzero(np.diff(starts))
    sums = np.zeros((2, len(borders) - 1))
    if len(used):
        for row, values in zip(sums, (of.total, of.count), strict=True):
            row[used] = np.add.reduceat(values[: starts[-1]], starts[used])
    return sums[0], sums[1]


def _column(steps: Floats, borders: Floats) -> Ints:
    column = np.searchsorted(borders, steps, side="right") - 1
    return column[(column >= 0) & (column < len(borders) - 1)]
