"""This run and others of the same directory: their curves in one chart, and below it their results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.events import Resize
from textual.timer import Timer
from textual.widgets import Input

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.pages.metrics import sort_metrics
from trainkit.dashboard.pages.page import Page, begin_typing
from trainkit.dashboard.panels.comparison import COLORS, ComparedRuns, Results
from trainkit.dashboard.panels.rows import MOVES, RowTable, cell
from trainkit.events.series import Series
from trainkit.events.view import View
from trainkit.rundir.compare import AXES, SECONDS, Other, along, recipe_of, time_unit
from trainkit.rundir.listing import neighbours
from trainkit.rundir.summary import LOSS
from trainkit.text import neutralise

#: Seconds between two slices of reading a long log, and between two looks at which runs there are.
NEXT_SLICE, LOOK_EVERY = 0.05, 10.0
#: Cells from which list and chart are side by side, and lines from which the table is below the chart.
WIDE, HIGH = 100, 26
ALONE = ", enter adds one"


class ComparePage(Page):
    """Curves of several runs: enter chooses them, arrows choose the metric, `t` the axis."""

    NAME = "compare"
    DEFAULT_CSS = """
    ComparePage > .sides { layout: horizontal; height: 1fr; }
    ComparePage .runs { width: 44; }
    ComparePage .curves { width: 1fr; }
    ComparePage .curves > Chart { height: 1fr; }
    ComparePage .results { height: 40%; }
    ComparePage.-column > .sides { layout: vertical; }
    ComparePage.-column .runs { width: 1fr; height: 30%; min-height: 5; }
    ComparePage.-column .curves { height: 1fr; }
    ComparePage.-low .results { display: none; }
    ComparePage.-low.-table .results { display: block; height: 1fr; }
    ComparePage.-low.-table Chart { height: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "choose", "choose", key_display="enter"),
        Binding("m,right", "metric(1)", "metric"),
        Binding("M,left", "metric(-1)", "the previous metric", show=False),
        Binding("t", "axis", "steps, tokens, time"),
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("v", "table", "table", show=False, tooltip="the table or the chart, where only one fits"),
        Binding("escape", "all", "all", show=False),
        *MOVES,
        Binding("J", "scroll_table('cursor_down')", "down the table", show=False),
        Binding("K", "scroll_table('cursor_up')", "up the table", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._view, self._recipe = View(), dict[str, str]()
        self._others: dict[str, Other] = {}
        self._names: dict[str, Path] = {}
        self._looked = float("-inf")
        self._metric, self._axis = LOSS, AXES[0]
        #: Series over the chosen axis, kept until their metric changes.
        self._moved: dict[tuple[str, str, str], tuple[object, Series | None]] = {}
        self._drawn: object = None
        #: The timer for the next slices of logs that are still being read.
        self._more: Timer | None = None

    def compose(self) -> ComposeResult:
        wanted = Input(placeholder="part of a name; escape shows all")
        wanted.display = False
        yield wanted
        with Container(classes="sides"):
            yield ComparedRuns()
            with Vertical(classes="curves"):
                yield Chart(id="over-steps")
                yield Chart(linked=False, id="over-others")
                yield Results()

    def preferences(self) -> dict[str, Any]:
        return {"metric": self._metric, "axis": self._axis}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        if isinstance(metric := preferences.get("metric"), str) and metric:
            self._metric = metric
        self._axis = next((axis for axis in AXES if axis == preferences.get("axis")), self._axis)

    def compare_with(self, runs: Iterable[Path]) -> None:
        """Add these runs to the comparison."""
        for run in runs:
            if run.name not in self._others and len(self._others) < len(COLORS) - 1:
                self._others[run.name] = Other(run)
        if self._more is None:
            self._read_on()
        self.work(self._read_recipes, group="recipes", only=True)

    def show_view(self, view: View, *, now: float) -> None:
        self._view = view
        if abs(now - self._looked) >= LOOK_EVERY:
            self._looked = now
            self.work(self._look, group="look", only=True)
        for other in self._others.values():
            if not other.loading:
                other.advance()
        self._show()

    async def _look(self) -> None:
        found = await asyncio.to_thread(neighbours, self.run_directory)
        self._names = {run.name: run for run in found}
        self._show()
        await self._read_recipes()

    async def _read_recipes(self) -> None:
        self._recipe = await asyncio.to_thread(recipe_of, self.run_directory)
        for other in list(self._others.values()):
            other.recipe = await asyncio.to_thread(recipe_of, other.directory)
        self._show()

    def _read_on(self) -> None:
        """Read a slice of each log that is still being read; keys and timers are handled in between."""
        for other in [other for other in self._others.values() if other.loading]:
            other.advance()
        loading = any(other.loading for other in self._others.values())
        self._more = self.set_timer(NEXT_SLICE, self._read_on) if loading else None
        self._show()

    @property
    def _shown(self) -> list[tuple[str, View]]:
        """The name and view of each compared run, this run first."""
        own = self.run_directory.absolute().name
        return [(own, self._view), *((name, other.view) for name, other in self._others.items())]

    def _show(self) -> None:
        if not self.is_mounted or not self.query(Chart):
            return
        shown = self._shown
        wanted = self.query_one(Input).value.casefold()
        versions = [{name: series.version for name, series in view.series.items()} for _, view in shown]
        others = [(name, other.loading, other.problem, other.recipe) for name, other in self._others.items()]
        content = (versions, others, self._recipe, self._metric, self._axis, wanted, tuple(self._names), self.app.theme)
        if content == self._drawn:
            return
        self._drawn = content
        self._show_list(shown, wanted)
        self._show_chart(shown)
        self.query_one(Results).show(shown, [self._recipe, *(other.recipe for other in self._others.values())])

    def _show_list(self, shown: Sequence[tuple[str, View]], wanted: str) -> None:
        chosen = {name for name, _ in shown}
        rest = [name for name in self._names if name not in chosen and wanted in name.casefold()]
        notes = {name: other.problem or ("reading …" if other.loading else "") for name, other in self._others.items()}
        letters = self.query(Chart).first().letters
        found = self.query_one(ComparedRuns)
        found.show(shown, rest, metric=self._metric, notes=notes, letters=letters)
        with_ = f", {len(rest):,} more match “{wanted}”" if wanted else ""
        alone = ALONE if len(shown) == 1 and self._names else ""
        # the chart's title gives way to its legend
        found.border_title = cell(f"{self._metric} over {self._axis}", theme.DIM)
        known = chosen.union(self._names)
        found.border_subtitle = cell(f"{len(shown)} of {len(known):,} runs{with_}{alone}", theme.DIM)

    def _show_chart(self, shown: Sequence[tuple[str, View]]) -> None:
        curves: list[Curve] = []
        lacking = []
        unit, seconds = time_unit([view for _, view in shown]) if self._axis == "training time" else ("", 1.0)
        for place, (name, view) in enumerate(shown):
            series = self._over_axis(name, view, seconds)
            if series is None or not series:
                lacking.append(name)
            else:
                # exact points, which zooming in reads, are this run's alone
                metric = self._metric if not place and self._axis == "steps" else f"{name}/{self._metric}"
                curves.append(Curve(series, COLORS[place], theme.EDGE, metric=metric, label=cell(name).plain))
        charts = {"over-steps": self._axis == "steps", "over-others": self._axis != "steps"}
        for id, displayed in charts.items():
            chart = self.query_one(f"#{id}", Chart)
            chart.display = displayed
            if displayed:
                chart.key = self._metric
                below = f"; not measured by {', '.join(lacking)}" if lacking else ""
                chart.show(curves, title=f"{self._metric} over {self._axis}{unit}{below}")

    def _over_axis(self, name: str, view: View, seconds: float) -> Series | None:
        """Return the metric of a run over the chosen axis, time in units of so many seconds; computed again only if it
        has changed."""
        series = view.series.get(self._metric)
        if series is None:
            return None
        times = view.series.get(SECONDS)
        key = (name, self._metric, self._axis)
        of = (id(series), series.version, times.version if times else 0, seconds)
        if key not in self._moved or self._moved[key][0] != of:
            self._moved[key] = of, along(series, view, self._axis, seconds=seconds)
        return self._moved[key][1]

    @property
    def settled(self) -> bool:
        return not any(other.loading for other in self._others.values())

    @property
    def _list(self) -> RowTable:
        return self.query_one(ComparedRuns).query_one(RowTable)

    @property
    def _results(self) -> RowTable:
        return self.query_one(Results).query_one(RowTable)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "all":
            return self.query_one(Input).display  # else escape is not this page's
        return super().check_action(action, parameters)

    def offers(self, action: str) -> bool:
        return action != "choose" or bool(self._names)

    def copy_text(self) -> str | None:
        """Return the table of results as tab-separated lines."""
        rows = self.query_one(Results).text_rows()
        return "\n".join("\t".join(neutralise(value) for value in row) for row in rows)

    def action_choose(self) -> None:
        """Add the chosen run to the comparison, or remove it."""
        name = self._list.chosen
        if name is None or name == self._shown[0][0]:
            return
        if name in self._others:
            del self._others[name]
            self._moved = {key: found for key, found in self._moved.items() if key[0] != name}
            self._show()
        elif len(self._others) + 1 >= len(COLORS):
            self.notify(f"at most {len(COLORS)} runs can be compared", severity="warning", markup=False)
        else:
            self.compare_with([self._names[name]])

    def action_metric(self, by: int) -> None:
        """Draw the next metric of those that any run has."""
        names = sort_metrics({name for _, view in self._shown for name in view.series} | {self._metric})
        self._metric = names[(names.index(self._metric) + by) % len(names)]
        self._show()

    def action_axis(self) -> None:
        self._axis = AXES[(AXES.index(self._axis) + 1) % len(AXES)]
        self._show()

    def action_table(self) -> None:
        self.toggle_class("-table")

    def action_move(self, how: str) -> None:
        self._list.move(how)

    def action_scroll_table(self, how: str) -> None:
        self._results.move(how)

    def action_filter(self) -> None:
        begin_typing(self.query_one(Input))

    def action_all(self) -> None:
        wanted = self.query_one(Input)
        wanted.value, wanted.display = "", False
        self.focus()
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.focus()

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < WIDE, "-column")
        self.set_class(event.size.height < HIGH, "-low")
        self._drawn = None
        self._show()
