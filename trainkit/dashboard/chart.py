"""A chart of series over steps: braille lines, round ticks, drawn anew only when data or size have changed."""

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
from textual.widget import Widget

from trainkit.dashboard import braille, theme, ticks
from trainkit.events.series import Series

#: From so many rows on there is room for labels under the plot, and for a line with ticks and marks above them.
ROWS_FOR_LABELS, ROWS_FOR_LINE = 5, 8


@dataclass(frozen=True)
class Curve:
    """One series and its colour. With a `band`, many points are a band of that colour and their trend a line on it."""

    series: Series
    color: str
    band: str | None = None


@dataclass(frozen=True)
class Mark:
    """A symbol on the axis at a step."""

    step: int
    symbol: str
    color: str


@dataclass(frozen=True)
class _Scale:
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool


_Style = Callable[[str], Style]
Paint = npt.NDArray[np.intp]
Drawing = tuple[npt.NDArray[np.uint8], Paint, list[str]]


def draw(
    curves: Sequence[Curve],
    *,
    colors: Mapping[str, str],
    width: int,
    height: int,
    log: bool = False,
    from_zero: bool = False,
    marks: Sequence[Mark] = (),
) -> list[Strip]:
    """`height` strips of `width` cells: labels on the left, the curves, later ones on top, and an axis below.

    `colors` are the variables of the theme.
    """
    style = partial(theme.rich_style, colors)
    curves = [curve for curve in curves if len(curve.series)]
    if not curves or width < 4 or height < 1:
        return _nothing(width, height, style)
    under = 2 if height >= ROWS_FOR_LINE else 1 if height >= ROWS_FOR_LABELS else 0
    rows = height - under
    x = (min(c.series.steps[0] for c in curves), max(c.series.steps[-1] for c in curves))
    columns = 2 * width
    envelopes = [_reduce(curve, x, columns, log) for curve in curves]
    scale = _Scale(x, _y_range(envelopes, from_zero=from_zero), log)
    labels = _y_labels(scale, rows)
    gutter = min(max(map(len, labels.values()), default=0) + 1, width // 2)
    plot = width - gutter
    envelopes = [_reduce(curve, x, 2 * plot, log) for curve in curves]
    painted = _paint(curves, envelopes, scale, width=plot, height=rows)
    grid = sorted(labels) if rows >= ROWS_FOR_LINE - 2 else []
    strips = [
        Strip([Segment(f"{labels.get(row, ''):>{gutter - 1}} "[:gutter], style(theme.DIM)), *segments], width)
        for row, segments in enumerate(_segments(painted, grid, style))
    ]
    return [*strips, *_axis(scale, marks, style, gutter=gutter, plot=plot)[2 - under :]]


class Chart(Widget):
    """Shows curves; the title on its border tells what and how much."""

    DEFAULT_CSS = "Chart { height: 1fr; width: 1fr; }"

    def __init__(self, *, from_zero: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._from_zero = from_zero
        self._curves: Sequence[Curve] = ()
        self._marks: Sequence[Mark] = ()
        self._log = False
        self._shown: object = None
        self._frame: list[Strip] = []
        self._frame_of: object = None

    def show(self, curves: Sequence[Curve], *, marks: Sequence[Mark] = (), log: bool = False) -> None:
        """Show these from now on; costs nothing where they are as they were."""
        wanted = (tuple((id(c.series), c.series.version, c.color) for c in curves), tuple(marks[-1:]), len(marks), log)
        if wanted == self._shown:
            return
        self._curves, self._marks, self._log, self._shown = curves, marks, log, wanted
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the frame, which is drawn when its first line is asked for."""
        width, height = self.size
        if self._frame_of != (self._shown, width, height, self.app.theme):
            self._frame = draw(
                self._curves,
                colors=self.app.theme_variables,
                width=width,
                height=height,
                log=self._log,
                from_zero=self._from_zero,
                marks=self._marks,
            )
            self._frame_of = (self._shown, width, height, self.app.theme)
        return self._frame[y] if y < len(self._frame) else Strip.blank(width)


def _nothing(width: int, height: int, style: _Style) -> list[Strip]:
    blank = [Strip.blank(width, style(theme.DIM)) for _ in range(height)]
    told = "no data yet"
    if height and width > len(told):
        blank[(height - 1) // 2] = Strip([Segment(told.center(width), style(theme.FAINT))], width)
    return blank


def _reduce(curve: Curve, x_range: tuple[float, float], columns: int, log: bool) -> braille.Envelope:
    steps, values = np.frombuffer(curve.series.steps), np.frombuffer(curve.series.values)
    return braille.envelope(steps, values, x_range=x_range, columns=columns, log=log)


def _y_range(envelopes: Sequence[braille.Envelope], *, from_zero: bool) -> tuple[float, float]:
    drawn = [e for e in envelopes if len(e.columns)]
    if not drawn:
        return 0.0, 1.0
    low, high = min(float(e.low.min()) for e in drawn), max(float(e.high.max()) for e in drawn)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    around = abs(low) * 0.1 or 1.0
    return low - around, low + around


def _y_labels(scale: _Scale, rows: int) -> dict[int, str]:
    """Row -> label. Where no two round numbers find a place, the ends are told as they are."""
    low, high = scale.y
    most = (rows + 1) // 3 if rows > 12 else max(2, (2 * rows + 2) // 3)
    for fewer in range(most, 1, -1):
        found = ticks.logarithmic(low, high, most=fewer) if scale.log else ticks.linear(low, high, most=fewer)
        labels = {round((high - value) / (high - low) * (4 * rows - 1)) // 4: text for value, text in found}
        if 2 <= len(labels) == len(found):
            return labels
    ends = {rows - 1: low, 0: high}
    return {row: ticks.short(10**value if scale.log else value) for row, value in ends.items()}


def _paint(
    curves: Sequence[Curve], envelopes: Sequence[braille.Envelope], scale: _Scale, *, width: int, height: int
) -> Drawing:
    """Bits (height, width), for each cell the number of its colour, and the colours; 0 is an empty cell."""
    bits = np.zeros((height, width), dtype=np.uint8)
    paint: Paint = np.zeros((height, width), dtype=np.intp)
    palette = [theme.FAINT]
    size = {"rows": 4 * height, "columns": 2 * width}
    for curve, reduced in zip(curves, envelopes, strict=True):
        banded = curve.band is not None and len(curve.series) > 2 * width
        cells = braille.cells(braille.line(reduced, y_range=scale.y, **size))
        palette.append(curve.band if banded and curve.band else curve.color)
        # a cell has one colour: dots of what lies below would be taken for this curve's
        bits[cells > 0] = cells[cells > 0]
        paint[cells > 0] = len(palette) - 1
        if banded:
            cells = braille.cells(braille.trend(reduced, y_range=scale.y, **size))
            palette.append(curve.color)
            bits[cells > 0] = cells[cells > 0]
            paint[cells > 0] = len(palette) - 1
        if len(reduced.broken):
            palette.append(theme.BAD)
            paint[-1, reduced.broken // 2] = len(palette) - 1
            bits[-1, reduced.broken // 2] = 0
    return bits, paint, palette


def _segments(drawing: Drawing, grid: Sequence[int], style: _Style) -> list[list[Segment]]:
    """Rows of segments, one for each run of one colour."""
    bits, paint, palette = drawing
    characters = np.where(bits, 0x2800 + bits.astype("<u4"), ord(" ")).astype("<u4")
    characters[grid] = np.where(paint[grid], characters[grid], ord("┈"))
    characters[(bits == 0) & (paint > 0)] = ord("×")
    styles = [style(color) for color in palette]
    rows = []
    for row, colors in zip(characters, paint, strict=True):
        text = row.tobytes().decode("utf-32-le")
        cuts = [0, *(np.flatnonzero(np.diff(colors)) + 1).tolist(), len(text)]
        rows.append([Segment(text[a:b], styles[colors[a]]) for a, b in pairwise(cuts)])
    return rows


def _axis(scale: _Scale, marks: Sequence[Mark], style: _Style, *, gutter: int, plot: int) -> list[Strip]:
    """The line under the plot with its ticks and marks, and the labels under that."""
    low, high = scale.x
    width = gutter + plot

    def cell(step: float) -> int:
        return gutter + (round((step - low) / (high - low) * (2 * plot - 1)) // 2 if high > low else plot // 2)

    found = ticks.steps(low, high, most=max(2, plot // 7)) if high > low else [(low, f"{low:g}")]
    line = [*" " * gutter, *"─" * plot]
    colors = [theme.EDGE] * width
    labels = [" "] * width
    for step, text in found:
        at = cell(step)
        line[at] = "┴"
        start = min(max(0, at - len(text) // 2), width - len(text))
        labels[start : start + len(text)] = text
    for mark in marks:
        if low <= mark.step <= high:
            line[cell(mark.step)], colors[cell(mark.step)] = mark.symbol, mark.color
    axis = Strip([Segment(c, style(color)) for c, color in zip(line, colors, strict=True)], width).simplify()
    return [axis, Strip([Segment("".join(labels), style(theme.DIM))], width)]
