"""Envelopes to braille. A braille cell is two dots wide and four high."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainkit.dashboard.charts.columns import Envelope, Floats, Ints

Mask = npt.NDArray[np.bool_]

#: The bit of each dot in a braille cell, 4 rows by 2 columns (Unicode, block U+2800).
BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint8)


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
    return _fill(across, *_close_gaps(top, bottom, joined), drawn=joined | ~between, rows=rows, columns=columns)


def cells(dots: Mask) -> npt.NDArray[np.uint8]:
    """Dots (4 * height, 2 * width) as the bits of braille cells (height, width): character 0x2800 + bits."""
    rows, columns = dots.shape
    blocks = dots.reshape(rows // 4, 4, columns // 2, 2)
    return np.einsum("hawb,ab->hw", blocks.astype(np.uint8), BITS)


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
