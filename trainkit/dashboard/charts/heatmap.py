"""A heat map: rows down, steps across, and a colour for each value, with a cursor that shows one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.strip import Strip
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.dashboard.charts.columns import Floats
from trainkit.text import format_quantity

Scale = Literal["auto", "log", "linear"]
#: Colours of the ramp from the lowest to the highest value, how many shades it has, and its signs without colours.
RAMP = (theme.TRAIN_BAND, theme.TRAIN, theme.SPEED, theme.WARN, theme.BRIGHT)
SHADES, SIGNS = 32, " ░▒▓█"
#: Values of one sign that differ by more than this factor have a logarithmic scale.
WIDE = 20.0
#: Lines below the map: the steps, and the legend with the value at the cursor.
BELOW = 2
LEGEND = 12


class Grid(NamedTuple):
    """What a heat map shows: values (rows, steps), a row for each label, nan where there is no value."""

    labels: Sequence[str]
    steps: Sequence[int]
    values: Floats


class ValueScale(NamedTuple):
    """The values as shares of the scale, 0 to 1, nan where a value is not finite or not on the scale."""

    shares: Floats
    low: float
    high: float
    log: bool


def scale_values(values: Floats, scale: Scale) -> ValueScale:
    """Return the values on the scale: logarithmic only if that is chosen or fits, and if values are above 0."""
    finite = values[np.isfinite(values)]
    above = finite[finite > 0]
    wide = above.size > 0 and above.size == finite.size and above.max() > WIDE * above.min()
    log = above.size > 0 and (scale == "log" or (scale == "auto" and wide))
    used = above if log else finite
    if not used.size:
        return ValueScale(np.full(values.shape, np.nan), 0.0, 0.0, log)
    low, high = float(used.min()), float(used.max())
    with np.errstate(divide="ignore", invalid="ignore"):
        at, least, most = (np.log(x) if log else x for x in (values, np.float64(low), np.float64(high)))
        shares = (at - least) / (most - least) if most > least else np.where(np.isfinite(at), 0.5, np.nan)
    return ValueScale(np.where(np.isfinite(shares), shares, np.nan), low, high, log)


class HeatMap(Widget):
    """A `Grid` in the whole widget. Rows that do not fit scroll with the cursor; of too many steps some are shown."""

    DEFAULT_CSS = "HeatMap { height: 1fr; width: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._grid = Grid([], [], np.zeros((0, 0)))
        self._scaled = scale_values(self._grid.values, "auto")
        #: The row of the cursor, and how many of the shown steps are after it.
        self._row, self._back = 0, 0
        #: The row in the first line, where not all of them fit.
        self._top = 0

    def show(self, grid: Grid, *, scale: Scale) -> None:
        """Show this grid from now on."""
        self._grid, self._scaled = grid, scale_values(grid.values, scale)
        self._row = max(0, min(self._row, len(grid.labels) - 1))
        self.refresh()

    def move(self, *, rows: int = 0, steps: int = 0) -> None:
        """Move the cursor by so many rows down and shown steps to the right, as far as there are any."""
        self._row = max(0, min(self._row + rows, len(self._grid.labels) - 1))
        self._back = max(0, min(self._back - steps, len(self._columns()) - 1))
        self.refresh()

    def at_cursor(self) -> tuple[str, int, float] | None:
        """Return the label, step and value at the cursor; None if nothing is shown."""
        columns = self._columns()
        if not len(columns) or not self._grid.labels:
            return None
        column = columns[max(0, len(columns) - 1 - self._back)]
        return self._grid.labels[self._row], self._grid.steps[column], float(self._grid.values[self._row, column])

    def render_line(self, y: int) -> Strip:
        """Return a line of the map, the line of the steps, or the legend."""
        width, rows = self.size.width, self.size.height - BELOW
        if not self._grid.labels or not len(self._columns()) or rows < 1:
            return Strip.blank(width, self._style(theme.TEXT))
        if y >= rows:
            segments = self._axis() if y == rows else self._legend() if y == rows + 1 else []
        else:
            segments = self._line(y, rows)
        return Strip(segments).adjust_cell_length(width, self._style(theme.TEXT)).crop(0, width)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the cursor to the mouse."""
        offset = event.get_content_offset(self)
        columns, rows = self._columns(), self.size.height - BELOW
        if offset is None or not len(columns) or not 0 <= offset.y < rows:
            return
        row, column = self._row_at(offset.y, rows), (offset.x - self._gutter) // self._cells(columns)
        if row is not None and 0 <= column < len(columns):
            self._row, self._back = row, len(columns) - 1 - column
            self.refresh()

    @property
    def _gutter(self) -> int:
        return min(max(map(len, self._grid.labels), default=0), self.size.width // 3) + 1

    def _columns(self) -> np.ndarray:
        """Return the numbers of the columns that are shown, the newest included."""
        count, room = len(self._grid.steps), max(1, self.size.width - self._gutter)
        return np.arange(count) if count <= room else np.unique(np.linspace(0, count - 1, room).round().astype(int))

    def _cells(self, columns: np.ndarray) -> int:
        """Return how many cells wide a step is."""
        return max(1, (self.size.width - self._gutter) // max(1, len(columns)))

    def _row_at(self, y: int, lines: int) -> int | None:
        """Return the row in this line of the map; None below the last one."""
        count = len(self._grid.labels)
        if count > lines:
            # scrolls no further than the cursor needs: the row under the mouse must stay there
            lowest, highest = max(0, self._row - lines + 1), min(self._row, count - lines)
            self._top = max(lowest, min(self._top, highest))
            return self._top + y
        row = y // (lines // count)
        return row if row < count else None

    def _line(self, y: int, lines: int) -> list[Segment]:
        row, text = self._row_at(y, lines), self._style(theme.TEXT)
        if row is None:
            return []
        first = y == 0 or self._row_at(y - 1, lines) != row
        gutter, columns = self._gutter, self._columns()
        label = self._grid.labels[row][: gutter - 1] if first else ""
        cells = self._cells(columns)
        segments = [Segment(f"{label:>{gutter - 1}} ", self._style(theme.BRIGHT if row == self._row else theme.DIM))]
        chosen = max(0, len(columns) - 1 - self._back) if row == self._row and first else None
        for number, column in enumerate(columns):
            sign, style = self._shade(self._scaled.shares[row, column], self._grid.values[row, column])
            drawn = "◆" * cells if number == chosen else sign * cells
            segments.append(Segment(drawn, text if number == chosen else style))
        return segments

    def _axis(self) -> list[Segment]:
        columns, gutter = self._columns(), self._gutter
        first, last = (f"{self._grid.steps[columns[end]]:,}" for end in (0, -1))
        width = self._cells(columns) * len(columns)
        middle = "step" if width >= len(first) + len(last) + 8 else ""
        text = f"{first}{middle:^{max(1, width - len(first) - len(last))}}{last}" if len(columns) > 1 else first
        return [Segment(" " * gutter + text, self._style(theme.DIM))]

    def _legend(self) -> list[Segment]:
        dim, found = self._style(theme.DIM), self.at_cursor()
        ramp = [Segment(*self._shade(i / (LEGEND - 1), i / (LEGEND - 1))) for i in range(LEGEND)]
        low, high = format_quantity(self._scaled.low), format_quantity(self._scaled.high)
        name = "log" if self._scaled.log else "linear"
        segments = [Segment(f"{low} ", dim), *ramp, Segment(f" {high} {name}", dim)]
        if found is not None:
            label, step, value = found
            segments.append(Segment(f"   ◆ {label} · step {step:,} · {value:.4g}", self._style(theme.BRIGHT)))
        return segments

    def _shade(self, share: float, value: float) -> tuple[str, Style]:
        """Return the sign and the style of a value at this share of the scale."""
        if not np.isfinite(value):
            return ("×", self._style(theme.BAD)) if np.isinf(value) else (" ", self._style(theme.TEXT))
        if not np.isfinite(share):
            return "·", self._style(theme.DIM)
        if self.app.theme == theme.PLAIN or self.app.no_color:
            return SIGNS[round(share * (len(SIGNS) - 1))], self._style(theme.TEXT)
        at = round(share * (SHADES - 1)) / (SHADES - 1) * (len(RAMP) - 1)
        low = min(int(at), len(RAMP) - 2)
        left, right = (Color.parse(self.app.theme_variables[name.removeprefix("$")]) for name in RAMP[low : low + 2])
        return "█", Style(color=left.blend(right, at - low).rich_color, bgcolor=self._style(theme.TEXT).bgcolor)

    def _style(self, color: str) -> Style:
        return theme.rich_style(self.app.theme_variables, color)
