"""Curves over steps as cells: braille lines, round ticks, marks, and signs where something lies off the scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from trainkit.dashboard import theme
from trainkit.dashboard.charts import ticks
from trainkit.dashboard.charts.columns import Envelope, StepRange, braille_cells, envelope, line_dots
from trainkit.dashboard.charts.curves import (
    ChartOptions,
    Curve,
    DrawnCurve,
    Range,
    extent,
    points_to_draw,
    reduce_curve,
    visible_curves,
    y_range,
)
from trainkit.dashboard.charts.ticks import Unit
from trainkit.events.series import Series
from trainkit.events.view import Marker

#: From so many rows on there is room for labels under the plot, and for a line with ticks and marks above them.
ROWS_FOR_LABELS, ROWS_FOR_LINE = 5, 8
#: The marks on the axis: kind -> (sign, colour), the most important last.
MARKS = {
    "evaluation": ("◦", theme.DIM),
    "checkpoint": ("◆", theme.BUSY),
    "command": ("▸", theme.GOOD),
    "resume": ("»", theme.WARN),
    "alert": ("!", theme.BAD),
}
#: Cells by which a mark may stand beside its step.
ASIDE = 2
ABOVE, BELOW, BROKEN, CROSS = "▲", "▼", "×", "│"

_Style = Callable[[str], Style]
Codes = npt.NDArray[np.uint32]
Paint = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Picture:
    """A drawing of curves without the crosshair. `cut` says whether values lie above it, and below it."""

    window: StepRange | None
    gutter: int
    characters: Codes
    paint: Paint
    palette: Sequence[Style]
    labels: Sequence[Strip]
    axis: Sequence[Strip]
    cut: tuple[bool, bool] = (False, False)

    @property
    def columns(self) -> int:
        """Cells between the left and the right end of the plot."""
        return self.characters.shape[1]

    def cell(self, step: float) -> int | None:
        """Return the column of cells of a step, from 0; None if it is not in the picture."""
        if self.window is None or not self.columns:
            return None
        return next(iter(_cells(np.array([step]), self.window, self.columns).tolist()), None)

    def steps(self, cell: int) -> Range:
        """Return the steps of column `cell` of the plot: from the first up to the second, exclusive."""
        assert self.window is not None
        borders = self.window.borders(2 * self.columns)
        cell = min(max(0, cell), self.columns - 1)
        return float(borders[2 * cell]), float(borders[2 * cell + 2])

    def lines_unlike(self, other: Picture) -> list[int] | None:
        """Return the lines that differ from the other picture; None if any may."""
        if (self.gutter, self.characters.shape, self.palette) != (other.gutter, other.characters.shape, other.palette):
            return None
        if len(self.axis) != len(other.axis):
            return None
        drawn = (self.characters != other.characters).any(axis=1) | (self.paint != other.paint).any(axis=1)
        labels = zip(self.labels, other.labels, strict=True)
        relabelled = np.fromiter((ours != theirs for ours, theirs in labels), dtype=bool)  # of no rows too
        below = [ours != theirs for ours, theirs in zip(self.axis, other.axis, strict=True)]
        return [line for line, differs in enumerate([*(drawn | relabelled).tolist(), *below]) if differs]

    def strips(self, cross: float | None, style: Style) -> list[Strip]:
        """Return the lines of the picture, with a crosshair in `style` at step `cross`."""
        characters, paint, palette = self.characters, self.paint, self.palette
        if cross is not None and (cell := self.cell(cross)) is not None:
            characters, paint, palette = characters.copy(), paint.copy(), [*palette, style]
            free = paint[:, cell] == 0  # a dot stays, the line passes behind it
            characters[free, cell], paint[free, cell] = ord(CROSS), len(palette) - 1
        rows = _segments(characters, paint, palette)
        width = self.gutter + self.columns
        drawn = [Strip([*label, *row], width) for label, row in zip(self.labels, rows, strict=True)]
        return [*drawn, *self.axis]


def draw(
    curves: Sequence[Curve],
    *,
    colors: Mapping[str, str],
    width: int,
    height: int,
    window: StepRange | None = None,
    log_x: bool = False,
    look: ChartOptions = ChartOptions(),  # noqa: B008 (it cannot change)
    from_zero: bool = False,
    marks: Sequence[Marker] = (),
    unit: Unit = "",
    letters: bool = False,
    exact: Mapping[str, Series] | None = None,
    over: str = "step",
) -> Picture:
    """`height` lines of `width` cells: labels on the left, the curves, later ones on top, and an axis below.

    Args:
        colors: the variables of the theme.
        window: the steps to be shown; else all.
        letters: draw curves after the first with a letter each rather than with dots, for want of colours.
        exact: by metric, every point in the window, of series that keep none there.
        over: what the horizontal axis counts, written at its left end where there is room.
    """
    style = partial(theme.rich_style, colors)
    curves = visible_curves(curves, look)
    window = window or extent(curves, log=log_x)
    if window is None or width < 4 or height < 1:
        return _nothing(width, height, style)
    under = 2 if height >= ROWS_FOR_LINE else 1 if height >= ROWS_FOR_LABELS else 0
    rows = height - under
    points_of = [points_to_draw(curve, window, look, exact or {}) for curve in curves]
    rough = [envelope(raw, window=window, columns=max(2, 2 * (width - 6))) for raw, _ in points_of]
    y = y_range(rough, from_zero=from_zero and not look.log, whole=look.whole)
    labels = _y_labels(y, rows, look, unit)
    gutter = min(max(map(len, labels.values()), default=0) + 1, width // 2)
    plot = width - gutter
    lines = [reduce_curve(c, of, window, 2 * plot, look) for c, of in zip(curves, points_of, strict=True)]
    characters, paint, palette = _paint(lines, y, width=plot, height=rows, letters=letters)
    grid = sorted(labels) if rows >= ROWS_FOR_LINE - 2 else []
    characters[grid] = np.where(paint[grid], characters[grid], ord("┈"))
    bold = Style(bold=True) if letters else Style()
    return Picture(
        window=window,
        gutter=gutter,
        characters=characters,
        paint=paint,
        palette=[style(color) + (bold if smooth else Style()) for color, smooth in palette],
        labels=[
            Strip([Segment(f"{labels.get(row, ''):>{gutter - 1}} "[:gutter], style(theme.DIM))], gutter)
            for row in range(rows)
        ],
        axis=_axis(window, marks, style, gutter=gutter, plot=plot, over=over)[2 - under :],
        cut=_cut(lines, y),
    )


def _cut(lines: Sequence[DrawnCurve], y: Range) -> tuple[bool, bool]:
    above = any(bool((line.raw.high > y[1]).any()) for line in lines)
    return above, any(bool((line.raw.low < y[0]).any()) for line in lines)


def _nothing(width: int, height: int, style: _Style) -> Picture:
    blank = [Strip.blank(width, style(theme.DIM)) for _ in range(height)]
    message = "no data"
    if height and width > len(message):
        blank[(height - 1) // 2] = Strip([Segment(message.center(width), style(theme.FAINT))], width)
    none = np.empty((0, 0))
    return Picture(None, 0, none.astype(np.uint32), none.astype(np.intp), (), (), blank)


def _y_labels(y: Range, rows: int, look: ChartOptions, unit: Unit) -> dict[int, str]:
    """Return the label of each row that has one: round numbers, or the ends of the range where no two of them fit."""
    low, high = y
    most = (rows + 1) // 3 if rows > 12 else max(2, (2 * rows + 2) // 3)
    find = ticks.logarithmic if look.log else ticks.linear
    for fewer in range(most, 1, -1):
        found = find(low, high, most=fewer, unit=unit)
        labels = {round((high - value) / (high - low) * (4 * rows - 1)) // 4: text for value, text in found}
        if 2 <= len(labels) == len(found):
            return labels
    ends = {rows - 1: low, 0: high}
    return {row: ticks.short(10**value if look.log else value, unit) for row, value in ends.items()}


def letter(index: int) -> str:
    """Return the letter that draws the curve with this number where there are no colours; the first has dots."""
    return chr(ord("a") + (index - 1) % 26)


def _paint(
    lines: Sequence[DrawnCurve], y: Range, *, width: int, height: int, letters: bool
) -> tuple[Codes, Paint, list[tuple[str, bool]]]:
    """Characters (height, width), for each cell the number of its colour, and (colour, whether of a smooth line)."""
    characters = np.full((height, width), ord(" "), dtype=np.uint32)
    paint: Paint = np.zeros((height, width), dtype=np.intp)
    palette = [(theme.FAINT, False)]

    def put(where: npt.NDArray[np.bool_], what: npt.NDArray[np.uint32] | int, color: str, smooth: bool = False) -> None:
        # a cell has one colour: the dots of a curve below would look like this curve's
        palette.append((color, smooth))
        characters[where], paint[where] = what if isinstance(what, int) else what[where], len(palette) - 1

    def trace(index: int, line: Envelope, color: str, *, smooth: bool = False) -> None:
        dots = line_dots(line, y_range=y, rows=4 * height, columns=2 * width)
        bits = braille_cells(np.maximum.accumulate(dots, axis=0) if lines[index][0].filled and not smooth else dots)
        sign = ord(letter(index)) if letters and index else None
        put(bits > 0, bits + np.uint32(0x2800) if sign is None else sign, color, smooth)

    for index, (curve, raw, smooth) in enumerate(lines):
        if smooth:  # bands first, so that none hides another curve
            trace(index, raw, curve.band or curve.color)
    for index, (curve, raw, smooth) in enumerate(lines):
        trace(index, smooth or raw, curve.color, smooth=smooth is not None)
        for row, columns, sign_, color in (
            (0, raw.columns[raw.high > y[1]], ABOVE, curve.color),
            (-1, raw.columns[raw.low < y[0]], BELOW, curve.color),
            (-1, raw.broken, BROKEN, theme.BAD),
        ):
            edge = np.zeros((height, width), dtype=bool)
            edge[row, columns // 2] = True
            put(edge, ord(sign_), color)
    return characters, paint, palette


def _segments(characters: Codes, paint: Paint, palette: Sequence[Style]) -> list[list[Segment]]:
    """Rows of segments, one for each run of one colour."""
    rows = []
    for row, colors in zip(characters.astype("<u4"), paint, strict=True):
        text = row.tobytes().decode("utf-32-le")
        cuts = [0, *(np.flatnonzero(np.diff(colors)) + 1).tolist(), len(text)]
        rows.append([Segment(text[a:b], palette[colors[a]]) for a, b in pairwise(cuts)])
    return rows


def _cells(steps: npt.NDArray[np.float64], window: StepRange, plot: int) -> npt.NDArray[np.intp]:
    """The columns of cells that those of the steps lie in that are within the window."""
    share = window.share(steps)
    share = share[(share >= -1e-9) & (share <= 1 + 1e-9)]
    return np.rint(np.clip(share, 0, 1) * (2 * plot - 1)).astype(np.intp) // 2


def x_ticks(window: StepRange, *, most: int) -> list[ticks.Tick]:
    """Ticks at whole steps."""
    if window.high <= window.low:
        return [(window.low, f"{window.low:g}")]
    if window.log:
        found = ticks.logarithmic(float(np.log10(window.low)), float(np.log10(window.high)), most=most)
        return [(10**value, text) for value, text in found]
    return ticks.steps(window.low, window.high, most=most)


def _places(marks: Sequence[Marker], window: StepRange, plot: int) -> dict[int, str]:
    """The cells of marks, and their kinds. Where several kinds fall on one cell, the most important has it, and each
    other one the nearest that is free, up to `ASIDE` cells away."""
    places: dict[int, str] = {}
    for kind in reversed(MARKS) if marks else ():
        steps = np.fromiter((mark.step for mark in marks if mark.kind == kind), dtype=np.float64)
        cells = np.unique(_cells(steps, window, plot)).tolist()
        for cell in [cell for cell in cells if places.setdefault(cell, kind) != kind]:
            near = (cell + sign * far for far in range(1, ASIDE + 1) for sign in (1, -1))
            free = next((other for other in near if 0 <= other < plot and other not in places), None)
            if free is not None:
                places[free] = kind
    return places


def _axis(
    window: StepRange, marks: Sequence[Marker], style: _Style, *, gutter: int, plot: int, over: str
) -> list[Strip]:
    """The line under the plot with its ticks and marks, and the labels under that."""
    width = gutter + plot
    line, colors, labels = [*" " * gutter, *"─" * plot], [theme.EDGE] * width, [" "] * width
    free = 0
    for step, text in x_ticks(window, most=max(2, plot // 7)):
        for cell in _cells(np.array([step]), window, plot).tolist():
            at = gutter + cell
            line[at] = "┴"
            start = min(max(0, at - len(text) // 2), width - len(text))
            if start >= free:
                labels[start : start + len(text)] = text
                free = start + len(text) + 1
    if "".join(labels[: len(over) + 1]).isspace():
        labels[: len(over)] = over
    for cell, kind in _places(marks, window, plot).items():
        line[gutter + cell], colors[gutter + cell] = MARKS[kind]
    axis = Strip([Segment(c, style(color)) for c, color in zip(line, colors, strict=True)], width).simplify()
    return [axis, Strip([Segment("".join(labels), style(theme.DIM))], width)]
