"""The machine: what its memory holds, where a step's time goes, and what the run runs on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.chart import Chart
from trainkit.dashboard.columns import Floats, Window, points
from trainkit.dashboard.curves import Curve
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.viewport import viewport_of
from trainkit.events import plain
from trainkit.events.series import Series
from trainkit.events.view import View

DEVICES = "memory/device/"
DEVICE_COLORS = (theme.TRAIN, *theme.VALIDATION, theme.NORM, theme.SPEED)
#: Steps that the median and the 95th percentile are of.
RECENT = 200
#: Cells of a bar.
BAR = 14
#: The share of a step below which waiting is told and not drawn.
LEAST_SHARE = 0.01
#: What the log does not tell, by names that say how it is told.
WAIT, PLANNED = "time/wait_share", "memory/planned"

Part = tuple[str, str]


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
        self._waiting, self._whole, self._planned = Series(limit=None), Series(), Series()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="system-body", can_focus=False):
            with Vertical(id="system-charts"):
                with Horizontal():
                    yield Chart(key=WAIT, id="time-share", from_zero=True)
                    yield Chart(key="time/step", id="time-step", from_zero=True)
                with Horizontal():
                    yield Chart(key=DEVICES, id="device-memory", from_zero=True)
                    yield Chart(key="memory/host", id="host-memory", from_zero=True)
                    yield Chart(key="host/cpu", id="host-cores", from_zero=True)
            with VerticalScroll(id="system-facts", can_focus=False, classes="framed") as facts:
                facts.border_title = Content.styled("machine", theme.DIM)
                yield Static("", markup=False)

    def show_view(self, view: View, *, now: float) -> None:
        shown = ("time/", "memory/", "host/")
        versions = tuple((name, s.version) for name, s in view.series.items() if name.startswith(shown))
        told = (
            view.attempt,
            view.total_steps,
            len(view.plan),
            view.pid,
            versions,
            self.size,
            viewport_of(self.app).version,
        )
        if told == self._told:
            return
        self._told = told
        self._show_time(view)
        self._show_memory(view)
        facts = [part for part in (_time(view), _plan(view), _devices(view), _host(view), _versions(view)) if part]
        self.query_one("#system-facts > Static", Static).update(Content("\n\n").join(map(_section, facts)))

    def action_move(self, rows: int) -> None:
        """Scroll whichever of the two can be scrolled."""
        for name in ("#system-body", "#system-facts"):
            self.query_one(name).scroll_relative(y=rows, animate=False)

    def _show_time(self, view: View) -> None:
        chart, title = self.query_one("#time-share", Chart), "where a step's time goes"
        times, waits = view.series.get("time/step"), view.series.get("time/data_wait")
        steps, shares = wait_shares(times, waits, stretches=max(1, 2 * chart.size.width), window=chart.window)
        _rewrite(self._waiting, zip(steps, shares, strict=True))
        _rewrite(self._whole, [(step, 1.0) for step in _ends([self._waiting])])
        # the least that can be drawn is a row of dots, which looks like more than this
        whole = Curve(self._whole, theme.TRAIN_BAND, metric=WAIT, filled=True)
        wait = Curve(self._waiting, theme.WARN, metric=WAIT, label="data wait", filled=True)
        # the least that can be drawn is a row of dots, which looks like more than this
        if (most := max(shares, default=0.0)) >= LEAST_SHARE:
            chart.show([whole, wait], title=title)
        else:
            chart.show([whole])
            told = f": data wait {most:.1%} at most" if shares else ""
            chart.border_title, chart.border_subtitle = Content(f"{title}{told}"), ""
        self._show_one("#time-step", view, "time/step", "step time (s)", theme.NORM, theme.NORM_BAND)

    def _show_memory(self, view: View) -> None:
        devices, planned = _device_metrics(view), _planned_bytes(view)
        chart = self.query_one("#device-memory", Chart)
        chart.display = bool(devices)
        curves = [
            Curve(view.series[name], DEVICE_COLORS[n % len(DEVICE_COLORS)], metric=name, label=name[len(DEVICES) :])
            for n, name in enumerate(devices)
        ]
        if curves and planned:
            _rewrite(self._planned, [(step, planned) for step in _ends(c.series for c in curves)])
            curves.insert(0, Curve(self._planned, theme.DIM, metric=PLANNED, label="planned"))
        chart.show(curves, title="device memory")
        self._show_one("#host-memory", view, "memory/host", "host memory", theme.RATE)
        self._show_one("#host-cores", view, "host/cpu", "cores in use", theme.SPEED)

    def _show_one(self, chart: str, view: View, metric: str, title: str, color: str, band: str | None = None) -> None:
        series = view.series.get(metric)
        curves = [Curve(series, color, band, metric=metric)] if series else []
        self.query_one(chart, Chart).show(curves, title=title)


def wait_shares(
    seconds: Series | None, waited: Series | None, *, stretches: int, window: Window | None
) -> tuple[list[float], list[float]]:
    """Last steps of so many stretches of the run, and the share of each's time that was waited for data: 0 to 1. The
    steps of the `window` are divided into so many as well.

    Both metrics are told at the same steps, and so put together in the same way; where they are not, a stretch has the
    mean of what there is in it.
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
    """The mean of the finite points from each of the `ends` (excluded) to the next (included); nan where none is."""
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
    """The first and the last step of them all."""
    there = [(s.first_steps[0] if s.stride > 1 else s.steps[0], s.steps[-1]) for s in series if s]
    return sorted({min(first for first, _ in there), max(last for _, last in there)}) if there else []


def _device_metrics(view: View) -> list[str]:
    names = [name for name in view.series if name.startswith(DEVICES)]
    return sorted(names, key=lambda name: (len(name), name))


def _planned_bytes(view: View) -> int:
    return sum(view.plan["bytes"].values()) if "bytes" in view.plan else 0


def _time(view: View) -> list[list[Part]]:
    head: list[Part] = [("step time", f"bold {theme.BRIGHT}")]
    found = [view.series.get(metric) for metric in ("time/step", "time/data_wait")]
    steps, waits = ([v for v in s.values[-RECENT:] if math.isfinite(v)] if s else [] for s in found)
    if not steps or not waits:
        return [head, [("no step has been timed yet", theme.DIM)]]
    stretch = found[0].stride if found[0] else 1
    which = f"last {len(steps)} steps" if stretch == 1 else f"{len(steps)} steps, every {stretch}th"
    head.append((f"  {which}", theme.DIM))
    recent = sorted(steps)
    share = min(1.0, math.fsum(waits) / len(waits) / (math.fsum(steps) / len(steps) or math.inf))
    color = theme.WARN if share > 0.1 else theme.TEXT
    return [
        head,
        _row("median", _seconds(statistics.median(recent))),
        _row("p95", _seconds(recent[math.ceil(0.95 * len(recent)) - 1])),
        [*_row("data wait", _seconds(math.fsum(waits) / len(waits))), (f"  {share:.1%} of the time", color)],
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
