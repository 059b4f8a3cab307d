"""The keys of the charts: zoom, pan, crosshair, scales, smoothing, a picture of one of them."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.timer import Timer
from textual.widgets import Input

from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.plot import Picture
from trainkit.dashboard.charts.svg import svg
from trainkit.dashboard.charts.viewport import Viewport, viewport_of
from trainkit.events.series import Series

#: The metric whose crosshair the enter key follows to the batch.
LOSS = "train/loss"
#: How much a key zooms, and the share of the picture that it pans.
ZOOM, PAN = 2.0, 0.25
#: Seconds for which the window must rest before points are read from the log.
STILL = 0.1
#: The class of the chart that the keys are about.
SELECTED = "-selected"

_WITH_CROSSHAIR = frozenset({"cross", "leave_crosshair", "batch_here", "batch_of_loss"})
_WITH_CHARTS = frozenset(
    {"zoom", "pan", "all_steps", "crosshair", "next_chart", "log_scale", "log_steps", "smoothing", "whole_range",
     "write_svg"}
)  # fmt: skip


class ChartKeys(App[None]):
    """The keys of charts. An application overrides `detail`, `open_batch` and `run_name` for its run.

    A class whose bases share keys must list both classes' bindings among its own; otherwise those of the first base
    replace the other's.
    """

    BINDING_GROUP_TITLE = "charts"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(-1)", "zoom in", key_display="+", show=False),
        Binding("minus", "zoom(1)", "zoom out", key_display="-", show=False),
        Binding("left_square_bracket", "pan(-1)", "pan left", key_display="[", show=False),
        Binding("right_square_bracket", "pan(1)", "pan right", key_display="]", show=False),
        Binding("0", "all_steps", "all steps", show=False),
        Binding("x", "crosshair", "crosshair", show=False, priority=True),
        Binding("left,h", "cross(-1)", "crosshair left", show=False, priority=True),
        Binding("right,l", "cross(1)", "crosshair right", show=False, priority=True),
        Binding("shift+left,H", "cross(-10)", "ten columns left", show=False, priority=True),
        Binding("shift+right,L", "cross(10)", "ten columns right", show=False, priority=True),
        Binding("escape", "leave_crosshair", "crosshair off", show=False, priority=True),
        Binding("b", "batch_here", "the batch under the crosshair", show=False),
        Binding("enter", "batch_of_loss", "the batch under the crosshair", show=False, priority=True),
        Binding("v", "next_chart", "next chart", show=False),
        Binding("l", "log_scale", "values on a log scale", show=False),
        Binding("X", "log_steps", "steps on a log scale", key_display="X", show=False),
        Binding("a", "smoothing", "average: trend, EMA, off", show=False),
        Binding("o", "whole_range", "outliers: cut off or shown", show=False),
        Binding("w", "write_svg", "write the chart as SVG", show=False),
    ]

    _shown_view: object = None
    _shown_attempt = 0
    _asking: Timer | None = None

    def on_mount(self) -> None:
        self.viewport.moved = self.want_detail

    def renew(self, view: object, attempt: int) -> None:
        """Show this attempt of this view from now on; forget the exact points of another."""
        if view is not self._shown_view or attempt != self._shown_attempt:
            self._shown_view, self._shown_attempt = view, attempt
            self.viewport.forget()

    def detail(self, low: float, high: float) -> dict[str, Series]:
        """Return every point of these steps by metric, or nothing if they are too many. A thread calls this."""
        return {}

    def open_batch(self, step: int) -> None:
        """Show the batch of the update that led to a step."""

    @property
    def run_name(self) -> str:
        """The name of what is shown, for names of files."""
        return self.title

    @property
    def viewport(self) -> Viewport:
        return viewport_of(self)

    def charts(self) -> list[Chart]:
        """Return the visible charts, from top left to bottom right."""
        found = [m for m in self.viewport.members if isinstance(m, Chart) and m.in_sight]
        return sorted(found, key=lambda chart: (chart.region.y, chart.region.x))

    def chosen_chart(self) -> Chart | None:
        """Return the chart that the keys act on."""
        charts = self.charts()
        return next((chart for chart in charts if chart.has_class(SELECTED)), charts[0] if charts else None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in _WITH_CHARTS | _WITH_CROSSHAIR:
            if len(self.screen_stack) != 1 or isinstance(self.focused, Input) or not self.charts():
                return False
            if action in _WITH_CROSSHAIR and not self.viewport.pinned:
                return False
            chart = self.chosen_chart()
            return action != "batch_of_loss" or (chart is not None and chart.key == LOSS)
        return super().check_action(action, parameters)

    def action_zoom(self, way: int) -> None:
        if whole := self.viewport.whole():
            self.viewport.zoom(ZOOM**way, whole)

    def action_pan(self, way: int) -> None:
        if whole := self.viewport.whole():
            self.viewport.pan(PAN * way, whole)

    def action_all_steps(self) -> None:
        self.viewport.reset()

    def action_crosshair(self) -> None:
        """Put the crosshair on the last step that is shown, or remove it."""
        viewport = self.viewport
        if viewport.pinned:
            viewport.point(None)
        elif whole := viewport.whole():
            viewport.point((viewport.window(whole) or whole).high, pinned=True)

    def action_cross(self, columns: int) -> None:
        """Move the crosshair by columns of the chosen chart; by a step at least."""
        cross, picture = self.viewport.cross, self._chosen_picture()
        if cross is None or picture is None or picture.window is None:
            return
        window = picture.window
        cell = picture.cell(min(max(cross, window.low), window.high)) or 0
        low, high = picture.steps(cell + columns)
        target = (low + high) / 2
        if abs(target - cross) < 1 or (target - cross) * columns < 0:
            target = cross + columns
        self.viewport.point(min(max(target, window.low), window.high), pinned=True)

    def action_leave_crosshair(self) -> None:
        self.viewport.point(None)

    def action_batch_here(self) -> None:
        if self.viewport.cross is not None:
            self.open_batch(int(self.viewport.cross))

    def action_batch_of_loss(self) -> None:
        self.action_batch_here()

    def action_next_chart(self) -> None:
        """Choose the next chart for the keys."""
        charts, chosen = self.charts(), self.chosen_chart()
        if chosen is not None:
            self._choose(charts[(charts.index(chosen) + chosen.has_class(SELECTED)) % len(charts)])

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, Chart):
            self._choose(event.widget)

    def _choose(self, chosen: Chart) -> None:
        for chart in self.charts():
            chart.set_class(chart is chosen, SELECTED)

    def action_log_scale(self) -> None:
        if chart := self.chosen_chart():
            look = self.viewport.look(chart.key)
            self.viewport.change_look(chart.key, look._replace(log=not look.log))

    def action_log_steps(self) -> None:
        self.viewport.toggle_log_x()

    def action_smoothing(self) -> None:
        if chart := self.chosen_chart():
            self.viewport.next_smoothing(chart.key)

    def action_whole_range(self) -> None:
        if chart := self.chosen_chart():
            look = self.viewport.look(chart.key)
            self.viewport.change_look(chart.key, look._replace(whole=not look.whole))

    def action_write_svg(self) -> None:
        """Write the chosen chart into the working directory; a viewer writes nothing into a run."""
        if (chart := self.chosen_chart()) is None or (window := chart.picture().window) is None:
            return
        parts = (self.run_name, chart.key, f"{window.high:.0f}")
        path = Path("-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") or "chart" for part in parts) + ".svg")
        name, over = (chart.key, "step") if chart.linked else (chart.title_text, "")  # which tells what its axis is
        document = svg(
            chart.curves, window=window, look=chart.look, marks=chart.marks, title=f"{self.run_name} · {name}",
            colors=self.theme_variables, from_zero=chart.from_zero, exact=self.viewport.exact_for(window), over=over,
        )  # fmt: skip
        try:
            path.write_text(document, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path.absolute()}: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"wrote {path.absolute()}", markup=False)

    def want_detail(self) -> None:
        """Read the exact points of the window once it rests, if a chart has too few points for it."""
        if self._asking is not None:
            self._asking.stop()
        self._asking = self.set_timer(STILL, self._ask_detail)

    def _ask_detail(self) -> None:
        viewport = self.viewport
        if viewport.range is None or viewport.asked_for(*viewport.range):
            return
        low, high = viewport.range
        if any(_is_coarse(chart, low, high) for chart in self.charts()):
            self.run_worker(self._read_detail(low, high), group="detail", exclusive=True)

    async def _read_detail(self, low: float, high: float) -> None:
        """Read the points with a margin for panning on both sides, or without it if that is too many."""
        margin = (high - low) / 4
        for begin, end in ((low - margin, high + margin), (low, high)):
            if found := await asyncio.to_thread(self.detail, begin, end):
                break
        self.viewport.give(found, begin, end)

    def _chosen_picture(self) -> Picture | None:
        chart = self.chosen_chart()
        return chart.picture() if chart else None


def _is_coarse(chart: Chart, low: float, high: float) -> bool:
    """Whether a curve of the chart has fewer buckets from one step to another than there are columns of dots."""
    columns = 2 * chart.size.width
    return any(curve.series.stride > 1 and _buckets(curve.series, low, high) < columns for curve in chart.curves)


def _buckets(series: Series, low: float, high: float) -> int:
    return bisect_right(series.steps, high) - bisect_right(series.steps, low)
