"""From series to dot columns to braille, in a few passes of numpy over the buckets of a series.

The points of each column are reduced to the first, the last, the lowest and the highest (the min/max decimation of
waveform displays; M4 of Jugel et al., VLDB 2014): a spike is never lost, however many points share its column.

A dot column is half a braille cell wide; a cell is four dots high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainkit.events.series import Series

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


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
        good = drawable(y, log)
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
    good, wrong, broken = drawable(flat_y, log), part("broken"), np.empty(0)
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


def drawable(y: Floats, log: bool) -> npt.NDArray[np.bool_]:
    """Return which values can be drawn: finite ones, and with `log` only those above 0."""
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


Mask = npt.NDArray[np.bool_]

#: The bit of each dot in a braille cell, 4 rows by 2 columns (Unicode, block U+2800).
BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint8)


def line_dots(of: Envelope, *, y_range: tuple[float, float], rows: int, columns: int) -> Mask:
    """Dots (rows, columns) of the envelope, its columns joined as the line through the points would join them."""
    if not len(of.columns):
        return np.zeros((rows, columns), dtype=bool)
    low, high, first, last = (_row(value, y_range, rows) for value in (of.low, of.high, of.first, of.last))
    across = np.arange(of.columns[0], of.columns[-1] + 1)
    place = np.searchsorted(of.columns, across, side="right") - 1
    top, bottom = high[place], low[place]
    between = across != of.columns[place]
    if between.any():
        left, right = place[between], place[between] + 1
        share = (across[between] - of.columns[left]) / (of.columns[right] - of.columns[left])
        level = np.rint(last[left] + share * (first[right] - last[left])).astype(np.intp)
        top[between] = bottom[between] = level
    joined = _joins_left(of, across, place)
    return _fill(across, *_close_gaps(top, bottom, joined), drawn=joined | ~between, rows=rows, columns=columns)


def braille_cells(dots: Mask) -> npt.NDArray[np.uint8]:
    """Dots (4 * height, 2 * width) as the bits of braille cells (height, width): character 0x2800 + bits."""
    rows, columns = dots.shape
    blocks = dots.reshape(rows // 4, 4, columns // 2, 2)
    return np.einsum("hawb,ab->hw", blocks.astype(np.uint8), BITS)


def _row(y: Floats, y_range: tuple[float, float], rows: int) -> Ints:
    low, high = y_range
    return np.clip(np.rint((high - y) / (high - low) * (rows - 1)), 0, rows - 1).astype(np.intp)


def _joins_left(of: Envelope, across: Ints, place: Ints) -> Mask:
    """For each column, whether no value that cannot be drawn lies between it and what it is joined to on its left."""
    if not len(of.broken):
        return np.ones(len(across), dtype=bool)
    before = np.searchsorted(of.broken, of.columns, side="right")
    gap_is_whole = np.append(np.diff(before) == 0, True)
    joined = gap_is_whole[place]
    here = across == of.columns[place]
    joined[here] = np.append(True, gap_is_whole[:-1])
    return joined


def _close_gaps(top: Ints, bottom: Ints, joined: Mask) -> tuple[Ints, Ints]:
    """Neighbours that do not touch are each drawn out to the middle between them."""
    top, bottom = top.copy(), bottom.copy()
    falls = joined[1:] & (top[1:] > bottom[:-1] + 1)
    rises = joined[1:] & (bottom[1:] < top[:-1] - 1)
    middle_down, middle_up = (bottom[:-1] + top[1:]) // 2, (top[:-1] + bottom[1:]) // 2
    new_top, new_bottom = top.copy(), bottom.copy()
    new_bottom[:-1][falls] = middle_down[falls]
    new_top[1:][falls] = middle_down[falls] + 1
    new_top[:-1][rises] = middle_up[rises] + 1
    new_bottom[1:][rises] = np.maximum(bottom[1:], middle_up)[rises]
    return new_top, new_bottom


def _fill(across: Ints, top: Ints, bottom: Ints, *, drawn: Mask, rows: int, columns: int) -> Mask:
    row = np.arange(rows)[:, None]
    dots = np.zeros((rows, columns), dtype=bool)
    dots[:, across] = (row >= top) & (row <= bottom) & drawn
    return dots
