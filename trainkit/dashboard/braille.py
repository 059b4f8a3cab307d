"""Series to braille: every point counts, at the cost of a few passes of numpy over the data.

A braille cell is two dots wide and four high. The points of each dot column are reduced to their lowest and highest
value (the min/max decimation of waveform displays): a spike is never lost, however many points share its column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: The bit of each dot in a braille cell, 4 rows by 2 columns (Unicode, block U+2800).
BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint8)


@dataclass(frozen=True)
class Envelope:
    """What the points of each dot column amount to; only columns that hold points, from left to right.

    `broken` are all columns that hold a value which cannot be drawn (nan, infinite, or not positive on a log scale).
    """

    columns: Ints
    low: Floats
    high: Floats
    first: Floats
    last: Floats
    total: Floats
    count: Ints
    broken: Ints


def envelope(x: Floats, y: Floats, *, x_range: tuple[float, float], columns: int, log: bool = False) -> Envelope:
    """Reduce the points (x ascending) to `columns` dot columns over `x_range`; with `log`, of log10 of `y`."""
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.log10(y)
    drawable = np.isfinite(y)
    broken = np.empty(0, dtype=np.intp)
    if not drawable.all():
        broken = np.unique(_column(x[~drawable], x_range=x_range, columns=columns))
        x, y = x[drawable], y[drawable]
    borders = _borders(x_range, columns)
    starts = np.searchsorted(x, borders)
    used = np.flatnonzero(np.diff(starts))
    begin, end = starts[used], starts[used + 1]
    if not len(used):
        none = np.empty(0)
        return Envelope(used, none, none, none, none, none, used, broken)
    y = y[: end[-1]]
    return Envelope(
        columns=used,
        low=np.minimum.reduceat(y, begin),
        high=np.maximum.reduceat(y, begin),
        first=y[begin],
        last=y[end - 1],
        total=np.add.reduceat(y, begin),
        count=end - begin,
        broken=broken,
    )


def line(of: Envelope, *, y_range: tuple[float, float], rows: int, columns: int) -> Mask:
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
    joined = _unbroken(of, across, place)
    return _fill(across, *_joined(top, bottom, joined), drawn=joined | ~between, rows=rows, columns=columns)


def trend(of: Envelope, *, y_range: tuple[float, float], rows: int, columns: int) -> Mask:
    """Dots of a smooth line through the points: local linear regression over a few columns.

    Unlike a moving average it is not drawn inwards at the ends, where a loss falls steeply (Cleveland 1979).
    """
    if not len(of.columns):
        return np.zeros((rows, columns), dtype=bool)
    reach = max(1, columns // 40)
    offset = np.arange(-3 * reach, 3 * reach + 1)
    weight = np.exp(-0.5 * (offset / reach) ** 2)

    def around(values: npt.NDArray[np.float64 | np.intp], power: int) -> Floats:
        spread = np.zeros(columns + 6 * reach)
        spread[of.columns + 3 * reach] = values
        return np.correlate(spread, weight * offset**power, "valid")[of.columns]

    n0, n1, n2 = (around(of.count, power) for power in (0, 1, 2))
    t0, t1 = around(of.total, 0), around(of.total, 1)
    spread = n0 * n2 - n1**2
    flat = spread <= 1e-9 * n0**2
    smooth = np.where(flat, t0 / n0, (n2 * t0 - n1 * t1) / np.where(flat, 1, spread))
    smoothed = Envelope(of.columns, smooth, smooth, smooth, smooth, smooth, np.ones_like(of.count), of.broken)
    return line(smoothed, y_range=y_range, rows=rows, columns=columns)


def cells(dots: Mask) -> npt.NDArray[np.uint8]:
    """Dots (4 * height, 2 * width) as the bits of braille cells (height, width): character 0x2800 + bits."""
    rows, columns = dots.shape
    blocks = dots.reshape(rows // 4, 4, columns // 2, 2)
    return np.einsum("hawb,ab->hw", blocks.astype(np.uint8), BITS)


def _borders(x_range: tuple[float, float], columns: int) -> Floats:
    """Where columns begin, and the end: the first and last x are the middles of the first and last column."""
    low, high = x_range
    if high <= low:
        borders = np.full(columns + 1, np.inf)
        borders[: columns // 2 + 1] = -np.inf
        return borders
    width = (high - low) / (columns - 1)
    borders = np.arange(-0.5, columns) * width + low
    borders[-1] = np.inf
    return borders


def _column(x: Floats, *, x_range: tuple[float, float], columns: int) -> Ints:
    inside = x[(x >= x_range[0]) & (x <= x_range[1])]
    return np.searchsorted(_borders(x_range, columns), inside, side="right") - 1


def _row(y: Floats, y_range: tuple[float, float], rows: int) -> Ints:
    low, high = y_range
    return np.clip(np.rint((high - y) / (high - low) * (rows - 1)), 0, rows - 1).astype(np.intp)


def _unbroken(of: Envelope, across: Ints, place: Ints) -> Mask:
    """For each column, whether no value that cannot be drawn lies between it and what it is joined to on its left."""
    if not len(of.broken):
        return np.ones(len(across), dtype=bool)
    before = np.searchsorted(of.broken, of.columns, side="right")
    gap_is_whole = np.append(np.diff(before) == 0, True)
    joined = gap_is_whole[place]
    here = across == of.columns[place]
    joined[here] = np.append(True, gap_is_whole[:-1])
    return joined


def _joined(top: Ints, bottom: Ints, joined: Mask) -> tuple[Ints, Ints]:
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
