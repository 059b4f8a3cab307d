"""The machine: memory, where a step's time goes, devices, host and versions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.charts.chart import Chart
from trainkit.dashboard.charts.columns import Floats, StepRange, points
from trainkit.dashboard.charts.curves import Curve
from trainkit.dashboard.charts.viewport import viewport_of
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.machine import (
    DEVICES,
    POWER,
    TEMPERATURE,
    UTILIZATION,
    core_lines,
    machine_facts,
    metrics_below,
    planned_bytes,
)
from trainkit.events.series import Series
from trainkit.events.view import View

DEVICE_COLORS = (theme.TRAIN, *theme.VALIDATION, theme.NORM, theme.SPEED)
#: The share of a step below which the wait is a number and not drawn.
LEAST_SHARE = 0.01
#: Series that the log does not have; their names decide their units.
WAIT, PLANNED = "data/wait_share", "memory/planned"


class SystemPage(Page):
    """Charts of time and memory beside the facts; in a narrow terminal all of it in one column that scrolls."""

    NAME = "system"
    SCOPED_CSS: ClassVar[bool] = False
    DEFAULT_CSS = """
    #system-body { layout: horizontal; scrollbar-size-vertical: 1; scrollbar-color: $edge;
        scrollbar-background: $ground; }
    #system-charts { width: 1fr; height: 1fr; }
    #system-charts > Horizontal { height: 1fr; }
    #system-cores { height: auto; padding: 0 1; }
    #system-facts { width: 52; height: 1fr; scrollbar-size-vertical: 1; scrollbar-color: $edge;
        scrollbar-background: $ground; }
    #system-facts > Static { height: auto; width: 1fr; }
    Screen.-medium #system-body, Screen.-narrow #system-body { layout: vertical; overflow-y: auto; }
    Screen.-medium #system-charts, Screen.-narrow #system-charts { height: auto; }
    Screen.-medium #system-facts, Screen.-narrow #system-facts { height: auto; width: 1fr; }
    Screen.-medium #system-charts > Horizontal { height: 10; }
    Screen.-narrow #system-charts > Horizontal { layout: vertical; height: auto; }
    Screen.-narrow #system-charts Chart { height: 9; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", key_display="j"),
        Binding("k,up", "move(-1)", "up", key_display="k"),
        Binding("pagedown,space", "move(10)", "ten lines down", show=False),
        Binding("pageup", "move(-10)", "ten lines up", show=False),
        Binding("g,home", "move(-100000)", "first", show=False),
        Binding("G,end", "move(100000)", "last", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._drawn: object = None
        self._facts = Content("")
        self._waiting, self._whole, self._planned = Series(limit=None), Series(), Series()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="system-body", can_focus=False):
            with Vertical(id="system-charts"):
                with Horizontal():
                    yield Chart(key=WAIT, id="time-share", from_zero=True)
                    yield Chart(key="time/step", id="time-step", from_zero=True)
                with Horizontal(id="system-devices"):
                    yield Chart(key=DEVICES, id="device-memory", from_zero=True)
                    yield Chart(key=POWER, id="device-power", from_zero=True)
                with Horizontal():
                    yield Chart(key="memory/host", id="host-memory", from_zero=True)
                    yield Chart(key="host/cpu", id="host-cores", from_zero=True)
                yield Static("", markup=False, id="system-cores")
            with VerticalScroll(id="system-facts", can_focus=False, classes="framed") as facts:
                facts.border_title = Content.styled("machine", theme.DIM)
                yield Static("", markup=False)

    def show_view(self, view: View, *, now: float) -> None:
        if not self.size:  # a chart without a width would have one stretch
            return
        shown = ("time/", "throughput/", "memory/", "host/", POWER, TEMPERATURE, UTILIZATION)
        versions = tuple((name, s.version) for name, s in view.series.items() if name.startswith(shown))
        content = (
            view.attempt,
            view.total_steps,
            len(view.plan),
            view.pid,
            versions,
            self.size,
            self.query_one("#system-charts").size,
            viewport_of(self.app).version,
        )
        if content == self._drawn:
            return
        self._drawn = content
        self._show_time(view)
        self._show_memory(view)
        self._facts = machine_facts(view)
        self.query_one("#system-facts > Static", Static).update(self._facts)
        cores = self.query_one("#system-cores", Static)
        lines = core_lines(view, self.query_one("#system-charts").size.width - 2)
        cores.display = bool(lines)
        cores.update(Content("\n").join(lines))

    def copy_text(self) -> str | None:
        """The facts."""
        return self._facts.plain or None

    def action_move(self, rows: int) -> None:
        """Scroll the page or the facts, whichever can scroll."""
        for name in ("#system-body", "#system-facts"):
            self.query_one(name).scroll_relative(y=rows, animate=False)

    def _show_time(self, view: View) -> None:
        chart, title = self.query_one("#time-share", Chart), "where a step's time goes"
        times, waits = view.series.get("time/step"), view.series.get("time/data_wait")
        steps, shares = wait_shares(times, waits, stretches=max(1, 2 * chart.size.width), window=chart.window)
        _rewrite(self._waiting, zip(steps, shares, strict=True))
        _rewrite(self._whole, [(step, 1.0) for step in _ends([self._waiting])])
        whole = Curve(self._whole, theme.TRAIN_BAND, metric=WAIT, filled=True)
        wait = Curve(self._waiting, theme.WARN, metric=WAIT, label="data wait share", filled=True)
        # the lowest row of dots would look like more than this
        if (most := max(shares, default=0.0)) >= LEAST_SHARE:
            chart.show([whole, wait], title=title)
        else:
            chart.show([whole])
            text = f"data wait: at most {most:.1%} of step time" if shares else title
            chart.border_title, chart.border_subtitle = Content(text), ""
        self._show_one("#time-step", view, "time/step", "step time", theme.NORM, theme.NORM_BAND)

    def _show_memory(self, view: View) -> None:
        planned, curves = planned_bytes(view), _device_curves(view, DEVICES, called="device ")
        chart = self.query_one("#device-memory", Chart)
        chart.display = bool(curves)
        if curves and planned:
            _rewrite(self._planned, [(step, planned) for step in _ends(c.series for c in curves)])
            curves.insert(0, Curve(self._planned, theme.DIM, metric=PLANNED, label="planned"))
        chart.show(curves, title="device memory")
        power = self._show_power(view)
        self.query_one("#system-devices").display = power or bool(curves)
        self._show_one("#host-memory", view, "memory/host", "host memory", theme.RATE)
        self._show_one("#host-cores", view, "host/cpu", "cores in use", theme.SPEED)

    def _show_power(self, view: View) -> bool:
        """Whether there is any to show."""
        chart, curves = self.query_one("#device-power", Chart), _device_curves(view, POWER, called="power ")
        chart.display = bool(curves)
        chart.show(curves, title="device power (W)")
        return bool(curves)

    def _show_one(self, chart: str, view: View, metric: str, title: str, color: str, band: str | None = None) -> None:
        series = view.series.get(metric)
        curves = [Curve(series, color, band, metric=metric)] if series else []
        self.query_one(chart, Chart).show(curves, title=title)


def wait_shares(
    seconds: Series | None, waited: Series | None, *, stretches: int, window: StepRange | None
) -> tuple[list[float], list[float]]:
    """Return the last steps of so many stretches of the run, and the share of the time of each, 0 to 1, that the
    trainer waited for data. The steps of the `window` are divided into so many as well.

    Both metrics are logged at the same steps and so have the same buckets; if not, a stretch has the mean of its
    points.
    """
    if not seconds or not waited:
        return [], []
    steps = np.array(seconds.steps)
    begin, end = (0, len(steps)) if window is None else np.searchsorted(steps, [window.low, window.high])
    parts = steps[:begin], steps[begin:end], steps[end:]
    ends = np.concatenate([part[:: -max(1, len(part) // stretches)][::-1] for part in parts])
    took, wait = _mean_between(seconds, ends), _mean_between(waited, ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(wait / took, 0, 1)
    there = np.isfinite(share)
    return ends[there].tolist(), share[there].tolist()


def _mean_between(series: Series, ends: Floats) -> Floats:
    """Return the mean of the finite points from each of the `ends` (excluded) to the next (included), or nan."""
    of = points(series)
    starts = np.concatenate([[0], np.searchsorted(of.at, ends, side="right")])
    total, count = (np.concatenate([[0.0], np.cumsum(part)]) for part in (of.total, of.count))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.diff(total[starts]) / np.diff(count[starts]))


def _rewrite(series: Series, points: Iterable[tuple[float, float]]) -> None:
    series.cut(-math.inf)
    for step, value in points:
        series.add(step, value)


def _ends(series: Iterable[Series]) -> list[float]:
    """Return the first and the last step of all series."""
    there = [(s.first_steps[0] if s.stride > 1 else s.steps[0], s.steps[-1]) for s in series if s]
    return sorted({min(first for first, _ in there), max(last for _, last in there)}) if there else []


def _device_curves(view: View, prefix: str, *, called: str) -> list[Curve]:
    """Return a curve for each device, with `called` before its number in the legend."""
    return [
        Curve(view.series[name], color, metric=name, label=f"{called}{name[len(prefix) :]}")
        for name, color in zip(metrics_below(view, prefix), cycle(DEVICE_COLORS), strict=False)
    ]
