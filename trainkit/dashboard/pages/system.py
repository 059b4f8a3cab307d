"""The machine: what its memory holds, where a step's time goes, and what the run runs on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.chart import Chart, Curve
from trainkit.dashboard.pages.page import Page
from trainkit.events import plain
from trainkit.events.series import Series
from trainkit.events.view import View

DEVICES = "memory/device/"
DEVICE_COLORS = (theme.TRAIN, *theme.VALIDATION, theme.NORM, theme.SPEED)
#: Steps that the median and the 95th percentile are of.
RECENT = 200
#: Cells of a bar.
BAR = 14
#: Per cent of a step below which waiting is told and not drawn.
LEAST_SHARE = 1.0

Part = tuple[str, str]
Floats = npt.NDArray[np.float64]


class System(Page):
    """Charts of time and memory beside the facts; in a narrow terminal all of it in one column that scrolls."""

    NAME = "system"
    SCOPED_CSS: ClassVar[bool] = False
    DEFAULT_CSS = """
    #system-body { layout: horizontal; scrollbar-size-vertical: 1; scrollbar-color: $edge;
        scrollbar-background: $ground; }
    #system-charts { width: 1fr; height: 1fr; }
    #system-charts > Horizontal { height: 1fr; }
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
        Binding("pagedown,space", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("g,home", "move(-100000)", show=False),
        Binding("G,end", "move(100000)", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._told: object = None
        self._waiting, self._computing, self._planned = Series(), Series(), Series()
        self._scaled: dict[str, _Scaled] = {}

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="system-body", can_focus=False):
            with Vertical(id="system-charts"):
                with Horizontal():
                    yield Chart(id="time-share", from_zero=True)
                    yield Chart(id="time-step", from_zero=True)
                with Horizontal():
                    yield Chart(id="device-memory", from_zero=True)
                    yield Chart(id="host-memory", from_zero=True)
                    yield Chart(id="host-cores", from_zero=True)
            with VerticalScroll(id="system-facts", can_focus=False, classes="framed") as facts:
                facts.border_title = Content.styled("machine", theme.DIM)
                yield Static("", markup=False)

    def show_view(self, view: View, *, now: float) -> None:
        shown = ("time/", "memory/", "host/")
        versions = tuple((name, s.version) for name, s in view.series.items() if name.startswith(shown))
        told = (view.attempt, view.total_steps, len(view.plan), view.pid, versions, self.size)
        if told == self._told:
            return
        self._told = told
        times = _both(view.series.get("time/step"), view.series.get("time/data_wait"))
        self._show_time(view, *times)
        self._show_memory(view)
        facts = [part for part in (_time(*times), _plan(view), _devices(view), _host(view), _versions(view)) if part]
        self.query_one("#system-facts > Static", Static).update(Content("\n\n").join(map(_section, facts)))

    def action_move(self, rows: int) -> None:
        """Scroll whichever of the two can be scrolled."""
        for name in ("#system-body", "#system-facts"):
            self.query_one(name).scroll_relative(y=rows, animate=False)

    def _show_time(self, view: View, steps: Floats, seconds: Floats, waited: Floats) -> None:
        chart = self.query_one("#time-share", Chart)
        _fill(self._computing, self._waiting, steps, seconds, waited, points=8 * max(60, chart.size.width))
        chart.show([Curve(self._computing, theme.TRAIN_BAND), Curve(self._waiting, theme.WARN)])
        legend: list[Part] = [("where a step's time goes", theme.DIM)]
        if total := float(seconds[-RECENT:].sum()):
            share = float(waited[-RECENT:].sum()) / total
            legend = [("█ ", theme.WARN), (f"data wait {share:.1%}", theme.TEXT)]
            legend += [("  █ ", theme.TRAIN_BAND), (f"compute {1 - share:.1%}", theme.TEXT), (" of a step", theme.DIM)]
        _entitle(chart, legend)
        chart = self.query_one("#time-step", Chart)
        series = view.series.get("time/step")
        _entitle(chart, [("step time (s)", theme.DIM)])
        chart.show([Curve(series, theme.NORM, theme.NORM_BAND)] if series else [])

    def _show_memory(self, view: View) -> None:
        devices, planned = _device_metrics(view), _planned_bytes(view)
        chart = self.query_one("#device-memory", Chart)
        chart.display = bool(devices)
        curves = [
            Curve(self._in(view, name, 1e-9), DEVICE_COLORS[n % len(DEVICE_COLORS)]) for n, name in enumerate(devices)
        ]
        legend: list[Part] = [("device memory (GB)", theme.DIM)]
        if len(curves) > 1:
            for name, curve in zip(devices, curves, strict=True):
                legend += [("  ━ ", curve.color), (plain.inert(name[len(DEVICES) :]), theme.DIM)]
        if curves and planned:
            _rewrite(self._planned, [(step, planned / 1e9) for step in _ends(c.series for c in curves)])
            curves.insert(0, Curve(self._planned, theme.DIM))
            legend += [("  ━ ", theme.DIM), ("planned", theme.DIM)]
        _entitle(chart, legend)
        chart.show(curves)
        for name, metric, title, factor, color in (
            ("#host-memory", "memory/host", "host memory (GB)", 1e-9, theme.RATE),
            ("#host-cores", "host/cpu", "cores in use", 1.0, theme.SPEED),
        ):
            chart = self.query_one(name, Chart)
            _entitle(chart, [(title, theme.DIM)])
            chart.show([Curve(self._in(view, metric, factor), color)] if metric in view.series else [])

    def _in(self, view: View, metric: str, factor: float) -> Series:
        """The metric in another unit."""
        if metric not in self._scaled:
            self._scaled[metric] = _Scaled(factor)
        return self._scaled[metric].of(view.series[metric])


class _Scaled:
    """A series in another unit, which follows its source: only what is new is looked at where it only grew."""

    def __init__(self, factor: float) -> None:
        self._factor, self._source, self._version = factor, Series(), 0
        self._scaled = Series()

    def of(self, source: Series) -> Series:
        grown = source.version - self._version == len(source) - len(self._scaled) >= 0
        if source is not self._source or not grown:
            self._scaled.cut(-math.inf)
        for n in range(len(self._scaled), len(source)):
            self._scaled.add(source.steps[n], source.values[n] * self._factor)
        self._source, self._version = source, source.version
        return self._scaled


def _both(seconds: Series | None, waited: Series | None) -> tuple[Floats, Floats, Floats]:
    """(steps, seconds, seconds waited) of the steps that tell both, as copies; no step waits longer than it took."""
    if not seconds or not waited:
        return np.empty(0), np.empty(0), np.empty(0)
    steps, others = np.frombuffer(seconds.steps), np.frombuffer(waited.steps)
    place = np.minimum(np.searchsorted(others, steps), len(others) - 1)
    took, wait = np.frombuffer(seconds.values), np.frombuffer(waited.values)[place]
    good = (others[place] == steps) & np.isfinite(took) & np.isfinite(wait) & (took > 0)
    return steps[good], took[good], np.clip(wait[good], 0, took[good])


def _fill(computing: Series, waiting: Series, steps: Floats, seconds: Floats, waited: Floats, *, points: int) -> None:
    """Rewrite both series so that, as lines, they fill the share of waiting (from 0) and above it that of computing.

    Shares are those of all the time in a stretch of steps. A line that runs up and down in every column is an area.
    """
    if len(steps) < 2:
        _rewrite(computing, [])
        _rewrite(waiting, [])
        return
    starts = np.unique(np.linspace(0, len(steps), max(1, points // 8), endpoint=False, dtype=np.intp))
    share = 100 * np.add.reduceat(waited, starts) / np.add.reduceat(seconds, starts)
    x = np.linspace(steps[0], steps[-1], points)
    level = share[np.searchsorted(steps[starts], x, side="right") - 1]
    up = np.arange(points) % 2 == 0
    _rewrite(computing, zip(x.tolist(), np.where(up, 100.0, level).tolist(), strict=True))
    # the least that can be drawn is a row of dots, which looks like more than this
    told = share.max() >= LEAST_SHARE
    _rewrite(waiting, zip(x.tolist(), np.where(up, level, 0.0).tolist(), strict=True) if told else [])


def _rewrite(series: Series, points: Iterable[tuple[float, float]]) -> None:
    series.cut(-math.inf)
    for step, value in points:
        series.add(step, value)


def _ends(series: Iterable[Series]) -> list[float]:
    there = [s for s in series if s]
    return sorted({min(s.steps[0] for s in there), max(s.steps[-1] for s in there)})


def _device_metrics(view: View) -> list[str]:
    names = [name for name in view.series if name.startswith(DEVICES)]
    return sorted(names, key=lambda name: (len(name), name))


def _planned_bytes(view: View) -> int:
    return sum(view.plan["bytes"].values()) if "bytes" in view.plan else 0


def _time(_steps: Floats, seconds: Floats, waited: Floats) -> list[list[Part]]:
    head: list[Part] = [("step time", f"bold {theme.BRIGHT}")]
    recent = np.sort(seconds[-RECENT:])
    if not len(recent):
        return [head, [("no step has been timed yet", theme.DIM)]]
    head.append((f"  last {len(recent)} steps", theme.DIM))
    share = float(waited[-RECENT:].sum() / recent.sum())
    color = theme.WARN if share > 0.1 else theme.TEXT
    return [
        head,
        _row("median", _seconds(statistics.median(recent.tolist()))),
        _row("p95", _seconds(float(recent[math.ceil(0.95 * len(recent)) - 1]))),
        [*_row("data wait", _seconds(float(waited[-RECENT:].mean()))), (f"  {share:.1%} of the time", color)],
    ]


def _plan(view: View) -> list[list[Part]]:
    head: list[Part] = [("planned for each device", f"bold {theme.BRIGHT}")]
    total = _planned_bytes(view)
    if not total:
        return [head, [("no estimate: it comes with the plan, before the first step", theme.DIM)]]
    limit = _limit(view)
    head.append((f"  {plain.bytes_(total)}" + (f" of {plain.bytes_(limit)}" if limit else ""), theme.TEXT))
    parts: Mapping[str, int] = view.plan["bytes"]
    order = sorted(parts, key=lambda what: -parts[what])
    return [head, *(_bar(what.replace("_", " "), parts[what], total, theme.TRAIN) for what in order)]


def _devices(view: View) -> list[list[Part]]:
    head: list[Part] = [("devices", f"bold {theme.BRIGHT}")]
    if not view.devices:
        return [head, [("not known before the plan", theme.DIM)]]
    names = sorted(set(view.devices))
    head.append(("  " + ", ".join(f"{view.devices.count(n)} × {plain.inert(n)}" for n in names), theme.TEXT))
    rows, total, limit = [head], _planned_bytes(view), _limit(view)
    for name in _device_metrics(view):
        used = view.series[name].values[-1]
        of = limit or total
        full = used / of if of else 0.0
        color = theme.BAD if limit and full > 0.97 else theme.WARN if limit and full > 0.9 else theme.SPEED
        rows.append(_bar(plain.inert(name[len(DEVICES) :]), used, of, color))
        if total and limit:
            rows.append(_row("", f"{used / total:.0%} of what was planned"))
    if len(rows) == 1:
        rows.append([("they do not tell their memory; a CPU's is the host's", theme.DIM)])
    return rows


def _host(view: View) -> list[list[Part]]:
    rows: list[list[Part]] = [[("host", f"bold {theme.BRIGHT}"), (f"  {plain.inert(view.host)}", theme.TEXT)]]
    if (memory := view.last("memory/host")) is not None:
        rows.append(_row("memory", plain.bytes_(memory)))
    if (cores := view.last("host/cpu")) is not None:
        rows.append(_row("cores in use", f"{cores:.1f}"))
    if view.pid is not None:
        rows.append(_row("process", str(view.pid)))
    return rows


def _versions(view: View) -> list[list[Part]]:
    rows = [_row(name, version) for name, version in view.versions.items()]
    return [[("versions", f"bold {theme.BRIGHT}")], *rows] if rows else []


def _limit(view: View) -> int | None:
    return view.plan["devices"]["memory_bytes"] if "devices" in view.plan else None


def _bar(label: str, value: float, of: float, color: str) -> list[Part]:
    full = round(BAR * min(1.0, value / of)) if of else 0
    size = plain.bytes_(value)
    share = f" {value / of:4.0%}" if of else ""
    bar: list[Part] = [("━" * full, color), ("─" * (BAR - full), theme.EDGE)]
    return [(f"{plain.inert(label):<16}", theme.DIM), *bar, (f" {size:>8}{share}", theme.TEXT)]


def _row(label: str, value: str) -> list[Part]:
    return [(f"{label:<16}", theme.DIM), (value, theme.TEXT)]


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s" if seconds < 60 else plain.duration(seconds)


def _section(rows: Sequence[Sequence[Part]]) -> Content:
    return Content("\n").join(Content.assemble(*row) for row in rows)


def _entitle(chart: Chart, parts: Sequence[Part]) -> None:
    content = Content.assemble(*parts)
    if content.markup != chart.border_title:
        chart.border_title = content
