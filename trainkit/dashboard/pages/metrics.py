"""Every metric of the run, a small chart for each; one of them at a time may fill the page."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.events import Click, Resize
from textual.widgets import Input, Static

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.keys import SELECTED
from trainkit.dashboard.charts.titles import Part, format_best, format_value, summarize
from trainkit.dashboard.pages.page import Page, begin_typing
from trainkit.events.view import View
from trainkit.text import one_line

GROUPS = (
    "train", "validation", "optimizer", "gradients", "parameters", "updates", "throughput", "time", "data", "memory",
    "host",
)  # fmt: skip
#: The smallest cell of the grid, and the ideal shape of a cell (width : height).
WIDTH, HEIGHT, SHAPE = 36, 8, 4.5
#: What the Δ of every chart means, in a long and a short form.
CHANGE = ("Δ: last tenth of the steps against the first", "Δ: last tenth against first")


def sort_metrics(names: Iterable[str], *, pinned: Iterable[str] = ()) -> list[str]:
    """Return the names, pinned ones first, then by group (train, validation, optimizer, …, unknown last) and name."""
    first = set(pinned)

    def place(name: str) -> tuple[bool, int, str]:
        group = name.partition("/")[0]
        return name not in first, GROUPS.index(group) if group in GROUPS else len(GROUPS), name

    return sorted(names, key=place)


def layout(count: int, *, width: int, height: int) -> tuple[int, int]:
    """Return (columns, rows) of the grid: the best shape that holds `count` charts, or the largest that fits."""
    most_columns, most_rows = max(1, width // WIDTH), max(1, height // HEIGHT)
    fitting = [(c, r) for c in range(1, most_columns + 1) if (r := max(1, -(-count // c))) <= most_rows]

    def off(grid: tuple[int, int]) -> float:
        columns, rows = grid
        return abs(math.log(width * rows / (columns * height * SHAPE)))

    return min(fitting, key=off, default=(most_columns, most_rows))


def compile_pattern(pattern: str) -> re.Pattern[str] | str:
    """Return the pattern, or what is wrong with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[` may mean something else one day
            return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error) or "too deep"


class MetricsPage(Page):
    """All metrics: `/` filters them, arrows choose one, enter shows it alone. Only what can be seen is mounted."""

    NAME = "metrics"
    DEFAULT_CSS = """
    MetricsPage > .status { height: 1; padding: 0 1; }
    MetricsPage > .grid { layout: grid; height: 1fr; overflow: hidden; }
    MetricsPage > .empty { height: 1fr; padding: 1 2; color: $dim; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("enter", "whole", "whole page"),
        Binding("f", "pin", "pin"),
        Binding("g", "app.log_scale", "log scale"),
        Binding("escape", "back", show=False),
        *(
            Binding(keys, f"move('{way}')", f"{way}", show=False)
            for way, keys in {
                "left": "left,h,V", "right": "right,l,v", "up": "up,k", "down": "down,j", "page up": "pageup",
                "page down": "pagedown", "first": "home", "last": "end",
            }.items()
        ),
    ]  # fmt: skip

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._view: View | None = None
        self._names: list[str] = []
        self._cells: list[MetricCell] = []
        self._pattern = re.compile("")
        self._pinned: set[str] = set()
        self._selected = ""
        self._whole = False
        self._columns, self._rows, self._first_row = 1, 1, 0
        self._status = Content("")

    def preferences(self) -> dict[str, Any]:
        return {"pinned": sorted(self._pinned), "filter": self._pattern.pattern}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        if isinstance(pinned := preferences.get("pinned"), list):
            self._pinned = {name for name in pinned if isinstance(name, str)}
        if isinstance(pattern := preferences.get("filter"), str) and not isinstance(
            found := compile_pattern(pattern), str
        ):
            self._pattern = found

    def compose(self) -> ComposeResult:
        search = Input(placeholder="a regular expression; escape shows all", id="metric-filter")
        search.display = False
        yield search
        yield Static(classes="status", markup=False)
        yield Static(classes="empty", markup=False)
        yield Container(classes="grid")

    def show_view(self, view: View, *, now: float) -> None:
        self._view = view
        self._draw()

    def on_resize(self, event: Resize) -> None:
        self._draw()

    @property
    def selected(self) -> str | None:
        """The metric that keys act on; None if none is shown."""
        return self._names[self._place()] if self._names else None

    def action_move(self, way: str) -> None:
        place, last, page = self._place(), len(self._names) - 1, self._columns * self._rows
        moves = {"left": -1, "right": 1, "up": -self._columns, "down": self._columns, "page up": -page}
        aim = {"first": 0, "last": last}.get(way, place + moves.get(way, page))
        leaves = aim < 0 or place // self._columns == last // self._columns < aim // self._columns
        if self._names and not (leaves and way in ("up", "down")):
            self._selected = self._names[min(max(aim, 0), last)]
        self._draw()

    def action_whole(self) -> None:
        self._whole = not self._whole
        self._draw()

    def action_back(self) -> None:
        """Back to the grid; from the filter or the grid, back to all metrics."""
        search = self.query_one(Input)
        if search.has_focus or not self._whole:
            search.value, self._pattern = "", re.compile("")
        else:
            self._whole = False
        search.display = False
        self.focus()
        self._draw()

    def action_pin(self) -> None:
        if name := self.selected:
            self._selected = name
            self._pinned ^= {name}
        self._draw()

    def action_filter(self) -> None:
        search = self.query_one(Input)
        self._whole, search.value = False, self._pattern.pattern
        begin_typing(search)
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        found = compile_pattern(event.value)
        wrong = f"not a regular expression: {one_line(found)}" if isinstance(found, str) else ""
        event.input.border_title = Content.styled(wrong or "filter", theme.WARN if wrong else theme.DIM)
        if not isinstance(found, str):
            self._pattern = found
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = False
        self.focus()
        self._draw()

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, MetricCell):
            self._selected = event.widget.key
            self._whole ^= event.chain == 2
            self._draw()

    def copy_text(self) -> str | None:
        """Return the name of the chosen metric, its last value and its best."""
        name = self.selected
        if self._view is None or name is None or (summary := summarize(self._view.series[name])) is None:
            return None
        return f"{one_line(name)}: {format_value(name, summary.last)}, {format_best(name, summary)}"

    def _place(self) -> int:
        return self._names.index(self._selected) if self._selected in self._names else 0

    def _draw(self) -> None:
        """Lay out the grid so that it has the selected metric, and draw it."""
        if (view := self._view) is None:
            return
        height = self.size.height - 1 - 3 * self.query_one(Input).display
        if self.size.width < 1 or height < 1:
            return
        self._names = sort_metrics(filter(self._pattern.search, view.series), pinned=self._pinned)
        one = self._whole and self._names
        self._columns, self._rows = (1, 1) if one else layout(len(self._names), width=self.size.width, height=height)
        row, rows = self._place() // self._columns, -(-len(self._names) // self._columns)
        self._first_row = min(max(self._first_row, row - self._rows + 1), row, max(0, rows - self._rows))
        first = self._first_row * self._columns
        visible = self._names[first : first + self._columns * self._rows]
        self._assign(visible)
        for cell in self._cells:
            cell.show_metric(view, pinned=cell.key in self._pinned, selected=cell.key == self.selected, alone=bool(one))
        self._show_status(view, first=first, shown=len(visible))

    def _assign(self, visible: list[str]) -> None:
        """Give each metric a cell. A metric that stays visible keeps its cell, and so its picture."""
        grid = self.query_one(".grid")
        if (grid.styles.grid_size_columns, grid.styles.grid_size_rows) != (self._columns, self._rows):
            grid.styles.grid_size_columns, grid.styles.grid_size_rows = self._columns, self._rows
        if [cell.key for cell in self._cells] == visible:
            return
        kept = {cell.key: cell for cell in self._cells if cell.key in visible}
        free = [cell for cell in self._cells if cell.key not in visible]
        new = [MetricCell() for _ in range(len(self._cells), len(visible))]
        grid.mount(*new)
        free += new
        self._cells = [kept[name] if name in kept else free.pop() for name in visible]
        for cell, name in zip(self._cells, visible, strict=True):
            cell.key = name
        for cell in free:
            cell.remove()
        place = {cell: index for index, cell in enumerate(self._cells)}
        grid.sort_children(key=lambda cell: place.get(cell, len(place)))  # type: ignore[call-overload]

    def _show_status(self, view: View, *, first: int, shown: int) -> None:
        """Write the line above the grid, or what replaces an empty grid."""
        empty, grid = self.query_one(".empty", Static), self.query_one(".grid")
        empty.display, grid.display = not self._names, bool(self._names)
        pattern = one_line(self._pattern.pattern)
        parts: list[Part] = []
        if self._names:
            which = f"{first + 1}" if shown == 1 else f"{first + 1} to {first + shown}"
            parts = [(f"{which} of {len(self._names)}", theme.DIM)]
            parts += [(f" that match {pattern} (escape: all)", theme.WARN)] if pattern else [(" metrics", theme.DIM)]
            parts += [("  ", theme.DIM), (one_line(self.selected or ""), theme.BRIGHT)]
            room = self.size.width - 2 - Content.assemble(*parts).cell_length
            parts += [(f"   {words}", theme.DIM) for words in CHANGE if len(words) + 3 <= room][:1]
        elif pattern:
            empty.update(f"none of the {len(view.series)} metrics match {pattern}; escape shows all")
        else:
            empty.update("no metrics yet: after the first step, every metric of the log has a chart here")
        status = Content.assemble(*parts).truncate(max(1, self.size.width - 2), ellipsis=True)
        if status != self._status:
            self._status = status
            self.query_one(".status", Static).update(status, layout=False)


#: The group's colours: the line's and that of the band around it.
COLORS = {
    "train": (theme.TRAIN, theme.TRAIN_BAND),
    "optimizer": (theme.RATE, None),
    **dict.fromkeys(("gradients", "parameters", "updates"), (theme.NORM, theme.NORM_BAND)),
    "throughput": (theme.SPEED, theme.SPEED_BAND),
}


class MetricCell(Chart):
    """One metric of the grid."""

    def show_metric(self, view: View, *, pinned: bool, selected: bool, alone: bool) -> None:
        """Show the view's series of the metric in `key`; marks too where the chart is `alone` on the page."""
        self.set_class(selected, SELECTED)
        star: list[Part] = [("★ ", theme.WARN)] if pinned else []
        title = [*star, (one_line(self.key), theme.BRIGHT if selected else theme.DIM)]
        self.show([_curve(self.key, view)], marks=view.markers if alone else (), title=title)


def _curve(metric: str, view: View) -> Curve:
    group, _, rest = metric.partition("/")
    series = view.series[metric]
    if group == "validation":
        sets = view.validation_sets()
        index = next((i for i, name in enumerate(sets) if rest.startswith(f"{name}/")), len(sets))
        return Curve(series, theme.VALIDATION[index % len(theme.VALIDATION)], metric=metric)
    color, band = COLORS.get(group, (theme.TEXT, theme.FAINT))
    return Curve(series, color, band, metric=metric)
