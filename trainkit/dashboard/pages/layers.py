"""Statistics of layers: a heat map over the steps, for one statistic of one part of every layer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.charts.heatmap import Grid, HeatMap, Scale
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.rows import cell
from trainkit.events.layers import LayerHistory
from trainkit.events.view import View
from trainkit.recipe.optimizers.parameters import is_stacked
from trainkit.text import one_line

#: The part of a statistic that has the parameters outside the layers, a row for each.
OUTSIDE = "outside the layers"
SCALES: tuple[Scale, ...] = ("auto", "log", "linear")
NOTHING = (
    "no statistics of layers yet\n\n"
    "A recipe asks for them with\n\n"
    '[statistics]\nevery = 10\ncompute = ["norms", "activations", "attention"]'
)


class LayersPage(Page):
    """A heat map: layers down, steps across, the values as colours; the cursor shows one value."""

    NAME, KEY = "layers", "i"
    DEFAULT_CSS = """
    LayersPage > .empty { height: 1fr; padding: 1 2; color: $dim; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "statistic(1)", "next statistic"),
        Binding("N", "statistic(-1)", "previous statistic", show=False),
        Binding("t", "part(1)", "next tensor"),
        Binding("b", "part(-1)", "previous tensor", show=False),
        Binding("g", "scale", "scale: automatic, log, linear"),
        Binding("left,h,left_square_bracket", "move(0, -1)", "earlier step", show=False),
        Binding("right,l,right_square_bracket", "move(0, 1)", "later step", show=False),
        Binding("up,k", "move(-1, 0)", "layer above", show=False),
        Binding("down,j", "move(1, 0)", "layer below", show=False),
        Binding("home", "move(0, -100000)", "first step", show=False),
        Binding("end", "move(0, 100000)", "last step", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._history = LayerHistory()
        #: Parts by statistic, in the order of the keys, and the chosen ones.
        self._parts: dict[str, list[str]] = {}
        self._statistic, self._part = "", ""
        self._scale: Scale = "auto"
        self._drawn: object = None
        self._grid = Grid([], [], np.zeros((0, 0)))

    def compose(self) -> ComposeResult:
        with Vertical(classes="framed"):
            yield HeatMap()
        yield Static(NOTHING, markup=False, classes="empty")

    def show_view(self, view: View, *, now: float) -> None:
        content = (id(view.layers), view.layers.version, self._statistic, self._part, self._scale)
        if content == self._drawn:
            return
        self._drawn, self._history = content, view.layers
        self._parts = parts_of(view.layers)
        self.query_one(".framed").display = bool(self._parts)
        self.query_one(".empty").display = not self._parts
        if self._parts:
            self._draw()

    def offers(self, action: str) -> bool:
        """Return whether there is anything that the keys could change."""
        return bool(self._parts)

    def copy_text(self) -> str | None:
        """Return the values of the map, a line for each step, separated by tabs."""
        if not self._parts:
            return None
        lines = ["\t".join(["step", *self._grid.labels])]
        for step, values in zip(self._grid.steps, self._grid.values.T, strict=True):
            lines.append("\t".join([str(step), *(f"{value:.6g}" for value in values)]))
        return "\n".join(lines)

    def action_statistic(self, by: int) -> None:
        self._statistic = _after(list(self._parts), self._statistic, by)
        self._draw()

    def action_part(self, by: int) -> None:
        self._part = _after(self._parts.get(self._statistic, []), self._part, by)
        self._draw()

    def action_scale(self) -> None:
        self._scale = SCALES[(SCALES.index(self._scale) + 1) % len(SCALES)]
        self._draw()

    def action_move(self, rows: int, steps: int) -> None:
        self.query_one(HeatMap).move(rows=rows, steps=steps)

    def _draw(self) -> None:
        if not self._parts:
            return
        statistics = list(self._parts)
        if self._statistic not in statistics:
            self._statistic = statistics[0]
        parts = self._parts[self._statistic]
        if self._part not in parts:
            self._part = parts[0]
        self._grid = grid_of(self._history, self._statistic, self._part)
        self.query_one(HeatMap).show(self._grid, scale=self._scale)
        frame = self.query_one(".framed")
        frame.border_title = cell(f"{self._statistic}  {self._part}", theme.TEXT)
        number, of_part = statistics.index(self._statistic) + 1, parts.index(self._part) + 1
        below = f"statistic {number} of {len(statistics)} (n)  tensor {of_part} of {len(parts)} (t)"
        frame.border_subtitle = cell(below, theme.DIM)


def parts_of(history: LayerHistory) -> dict[str, list[str]]:
    """Return the parts of each statistic in alphabetical order: those of layers, then the rest together."""
    paths = {path for column in history.columns for path in column.values}
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        statistic, _, part = path.rpartition("/")
        parts = found.setdefault(statistic, [])
        if is_stacked(part):
            parts.append(part)
    for path in paths:
        statistic, _, part = path.rpartition("/")
        if not is_stacked(part) and OUTSIDE not in found[statistic]:
            found[statistic].append(OUTSIDE)
    return found


def grid_of(history: LayerHistory, statistic: str, part: str) -> Grid:
    """Return the values of a part of each layer, or of all parameters outside them, over the steps that have any."""
    if part == OUTSIDE:
        paths = {path for column in history.columns for path in column.values}
        rows = sorted(p for p in paths if p.rpartition("/")[0] == statistic and not is_stacked(p.rpartition("/")[2]))
        columns = [
            (column.step, [column.values[row][0] if column.values.get(row) else np.nan for row in rows])
            for column in history.columns
            if any(row in column.values for row in rows)
        ]
        labels = [one_line(row.rpartition("/")[2]) for row in rows]
    else:
        path = f"{statistic}/{part}"
        columns = [(column.step, list(column.values[path])) for column in history.columns if path in column.values]
        most = max((len(values) for _, values in columns), default=0)
        columns = [(step, values + [np.nan] * (most - len(values))) for step, values in columns]
        labels = [f"layer {number}" for number in range(most)]
    values = np.array([values for _, values in columns], float).reshape(len(columns), len(labels)).T
    return Grid(labels, [step for step, _ in columns], values)


def _after(names: list[str], name: str, by: int) -> str:
    return names[(names.index(name) + by) % len(names)] if name in names else ""
