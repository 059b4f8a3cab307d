"""The machine of a run in words: the panel of the overview, and the facts and core loads of the system page."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from textual.content import Content
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.events.view import View
from trainkit.text import format_bytes, format_count, format_duration, format_quantity, neutralise, one_line

#: Metrics with the number of a device or a core after them.
DEVICES, POWER, UTILIZATION, CORES = "memory/device/", "power/device/", "utilization/device/", "host/core/"
PEAK, TEMPERATURE = "memory/device_peak/", "temperature/device/"
#: What the log has before the kind of a device.
NUMBERED = re.compile(r"^\w+:\d+ ")
#: How busy a core is, in eighths, and how many of them a line has at most.
BLOCKS, CORES_A_LINE = "▁▂▃▄▅▆▇█", 64
#: Steps that the median and the 95th percentile are of.
RECENT = 200
#: Cells of a bar on the page and in the panel.
BAR, SHORT_BAR = 14, 6

Part = tuple[str, str]


class SystemPanel(Widget):
    """Devices and host: one fact per line, the most important first, as many as fit."""

    DEFAULT_CSS = "SystemPanel { height: 1fr; width: 1fr; padding: 0 1; }"
    BORDER_TITLE = "machine"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._facts: list[tuple[str, Content]] = []

    def show_view(self, view: View, *, now: float) -> None:
        """Show the view's devices, memory, plan and newest checkpoint."""
        facts = [*_devices(view), *_host(view), *_plan(view), *_upkeep(view, now)]
        if facts != self._facts:
            self._facts = facts
            self.refresh()

    def render(self) -> Content:
        rows = self._facts[: self.size.height]
        pad = max((len(label) for label, _ in rows), default=0) + 2
        lines = [Content.assemble((f"{label:<{pad}}", theme.DIM), value) for label, value in rows]
        return Content("\n").join([line.truncate(self.size.width, ellipsis=True) for line in lines])


def _devices(view: View) -> list[tuple[str, Content]]:
    if not view.devices:
        return []
    used = {name[len(DEVICES) :]: view.last(name) for name in metrics_below(view, DEVICES)}
    memory = [(f"device {one_line(n)}", _memory(u, _limit(view))) for n, u in used.items() if u is not None]
    return [("devices", _text(devices_in_words(view))), *memory]


def _host(view: View) -> list[tuple[str, Content]]:
    facts = []
    if (cores := view.last("host/cpu")) is not None:
        facts.append(("cores", _text(f"{cores:.1f} in use")))
    if (memory := view.last("memory/host")) is not None:
        facts.append(("host memory", _text(format_bytes(memory))))
    waited, seconds = view.last("time/data_wait"), view.pace.step_seconds
    if seconds:
        facts.append(("step time", _text(f"{1e3 * seconds:.0f} ms" if seconds < 10 else format_duration(seconds))))
        if waited is not None:
            color = theme.WARN if waited > 0.1 * seconds else theme.TEXT
            facts.append(("data wait", Content.styled(f"{1e3 * waited:.1f} ms ({waited / seconds:.0%})", color)))
    tera, mfu = view.last("throughput/model_tflops"), view.last("throughput/mfu")
    if mfu is not None or tera is not None:
        facts.append(("MFU", _text("n/a" if mfu is None else f"{mfu:.1%}")))
    if tera is not None:
        facts.append(("TFLOP/s", _text(format_quantity(tera))))
    return facts


def _plan(view: View) -> list[tuple[str, Content]]:
    facts = []
    if "parameters" in view.plan:
        facts.append(("parameters", _text(format_count(view.plan["parameters"]))))
    if batch := view.plan.get("batch"):
        parts = [f"{batch['micro']}"]
        parts += [f"{batch['accumulation']} steps"] if batch["accumulation"] > 1 else []
        parts += [f"{batch['replicas']} devices"] if batch["replicas"] > 1 else []
        split = f" = {' × '.join(parts)}" if len(parts) > 1 else ""
        facts.append(("batch", _text(f"{batch['global_size']}{split}")))
    if view.plan.get("sequence_length"):
        facts.append(("sequence", _text(f"{view.plan['sequence_length']:,} tokens")))
    if "compute" in view.plan:
        facts.append(("compute", _text(str(view.plan["compute"]))))
    return facts


def _upkeep(view: View, now: float) -> list[tuple[str, Content]]:
    if view.saving is not None:
        return [("saving", Content.styled(f"step {view.saving:,}", theme.BUSY))]
    if not view.checkpoints:
        return []
    newest = view.checkpoints[-1]
    text = f"{newest.step:,} · {format_bytes(newest.bytes)}"
    if not view.finished and now - newest.t >= 60:
        text += f" · {format_duration(now - newest.t)} ago"
    return [("checkpoint", _text(text))]


def _memory(used: float, limit: float | None) -> Content:
    if not limit:
        return _text(format_bytes(used))
    full = round(SHORT_BAR * min(1.0, used / limit))
    bar = ("━" * full, _memory_color(used, limit)), ("─" * (SHORT_BAR - full), theme.EDGE)
    return Content.assemble(*bar, (f" {used / 1e9:.1f} of {limit / 1e9:.1f} GB", theme.TEXT))


def _memory_color(used: float, limit: float | None) -> str:
    share = used / limit if limit else 0.0
    return theme.BAD if share > 0.97 else theme.WARN if share > 0.9 else theme.SPEED


def _text(text: str) -> Content:
    return Content.styled(one_line(text), theme.TEXT)


def machine_facts(view: View) -> Content:
    """Return all known facts, in sections."""
    kinds = (_time_section, _speed_section, _plan_section, _devices_section, _host_section, _versions_section)
    sections = [part for part in (kind(view) for kind in kinds) if part]
    return Content("\n\n").join(map(_join, sections))


def core_lines(view: View, width: int) -> list[Content]:
    """Return how busy each core of the host is, a block of eighths for each, on lines of at most `width` cells."""
    cores = [view.series[name].values[-1] for name in metrics_below(view, CORES)]
    head = len(f"cores {len(cores)}–{len(cores)}  ")
    most = min(CORES_A_LINE, width - head)
    if not cores or most < 1:
        return []
    lines = []
    for first in range(0, len(cores), most):
        some = cores[first : first + most]
        blocks = "".join(BLOCKS[min(7, int(8 * max(0.0, share)))] if math.isfinite(share) else " " for share in some)
        label = f"cores {first}–{first + len(some) - 1}"
        lines.append(Content.assemble((f"{label:<{head}}", theme.DIM), (blocks, theme.SPEED)))
    return lines


def metrics_below(view: View, prefix: str) -> list[str]:
    """Return the metrics below a prefix, by the number after it."""
    names = [name for name in view.series if name.startswith(prefix)]
    return sorted(names, key=lambda name: (len(name), name))


def devices_in_words(view: View) -> str:
    """Return how many devices there are of each kind: `8 × NVIDIA A100`; the log has `gpu:0 NVIDIA A100` for each."""
    kinds = Counter(one_line(NUMBERED.sub("", name)) for name in view.devices)
    return ", ".join(f"{number} × {kind}" for kind, number in sorted(kinds.items()))


def planned_bytes(view: View) -> int:
    """Return the planned bytes of a device; 0 without a plan."""
    return sum(view.plan["bytes"].values()) if "bytes" in view.plan else 0


def _time_section(view: View) -> list[list[Part]]:
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
        *_parts(view, math.fsum(steps) / len(steps)),
    ]


def _parts(view: View, seconds: float) -> list[list[Part]]:
    """Return what else the loop did in a step of this length, and what it did between steps."""
    rows = []
    for part in ("dispatch", "device"):
        if (spent := _recent(view, f"time/{part}")) and seconds > 0:
            mean = math.fsum(spent) / len(spent)
            rows.append([*_row(part, _seconds(mean)), (f"  {min(1.0, mean / seconds):.1%} of the time", theme.TEXT)])
    between = {part: _recent(view, f"time/{part}") for part in ("evaluation", "checkpoint")}
    medians = {part: _seconds(statistics.median(spent)) for part, spent in between.items() if spent}
    return rows + [_row(part, f"{seconds} each, between steps") for part, seconds in medians.items()]


def _speed_section(view: View) -> list[list[Part]]:
    """Return what is computed per second; empty if the trainer reports no FLOP/s."""
    names = ("tokens_per_second", "samples_per_second", "model_tflops", "mfu")
    values = {name: _recent(view, f"throughput/{name}") for name in names}
    if not values["model_tflops"]:
        return []
    median = {name: statistics.median(values) for name, values in values.items() if values}
    rows = [[("throughput", f"bold {theme.BRIGHT}"), ("  median", theme.TEXT)]]
    units = [unit for unit in ("tokens", "samples") if f"{unit}_per_second" in median]
    rows += [_row(f"{unit}/s", format_count(median[f"{unit}_per_second"])) for unit in units]
    rows.append(_row("model TFLOP/s", format_quantity(median["model_tflops"])))
    return [*rows, _row("MFU", f"{median['mfu']:.1%}" if "mfu" in median else "n/a: device peak unknown")]


def _recent(view: View, metric: str) -> list[float]:
    """Return the finite values among the last ones of a metric."""
    return [v for v in view.series[metric].values[-RECENT:] if math.isfinite(v)] if metric in view.series else []


def _plan_section(view: View) -> list[list[Part]]:
    head: list[Part] = [("planned for each device", f"bold {theme.BRIGHT}")]
    total = planned_bytes(view)
    if not total:
        return [head, [("no estimate yet: the run is planned before its first step", theme.DIM)]]
    limit = _limit(view)
    head.append((f"  {format_bytes(total)}" + (f" of {format_bytes(limit)}" if limit else ""), theme.TEXT))
    parts: Mapping[str, int] = view.plan["bytes"]
    order = sorted(parts, key=lambda what: -parts[what])
    return [head, *(_bar(what.replace("_", " "), parts[what], total, theme.TRAIN) for what in order)]


def _devices_section(view: View) -> list[list[Part]]:
    head: list[Part] = [("devices", f"bold {theme.BRIGHT}")]
    if not view.devices:
        return [head, [("not known before the run is planned", theme.DIM)]]
    head.append((f"  {devices_in_words(view)}", theme.TEXT))
    rows, total, limit = [head], planned_bytes(view), _limit(view)
    details: dict[str, list[str]] = {}
    forms = (
        (PEAK, lambda value: f"at most {format_bytes(value)}"),
        (POWER, "{:.0f} W".format),
        (TEMPERATURE, "{:.0f} °C".format),
        (UTILIZATION, "busy {:.0%} of the time".format),
    )
    for prefix, form in forms:
        for name in metrics_below(view, prefix):
            details.setdefault(name[len(prefix) :], []).append(form(view.series[name].values[-1]))
    for name in metrics_below(view, DEVICES):
        used = view.series[name].values[-1]
        rows.append(_bar(neutralise(name[len(DEVICES) :]), used, limit or total, _memory_color(used, limit)))
        if total and limit:
            rows.append(_row("", f"{used / total:.0%} of what was planned"))
        if words := details.pop(name[len(DEVICES) :], None):
            rows.append(_row("", ", ".join(words)))
    if len(rows) == 1:
        rows.append([("their memory is not reported; a CPU uses the host's", theme.DIM)])
    rows += [_row(neutralise(device), ", ".join(words)) for device, words in details.items()]
    return rows


def _host_section(view: View) -> list[list[Part]]:
    memory, cores = view.last("memory/host"), view.last("host/cpu")
    rows: list[list[Part]] = [[("host", f"bold {theme.BRIGHT}"), (f"  {neutralise(view.host)}", theme.TEXT)]]
    rows += [_row("memory", format_bytes(memory))] if memory is not None else []
    rows += [_row("cores in use", f"{cores:.1f}")] if cores is not None else []
    return rows + ([_row("process", str(view.pid))] if view.pid is not None else [])


def _versions_section(view: View) -> list[list[Part]]:
    rows = [_row(name, version) for name, version in view.versions.items()]
    return [[("versions", f"bold {theme.BRIGHT}")], *rows] if rows else []


def _limit(view: View) -> int | None:
    return view.plan["devices"]["memory_bytes"] if "devices" in view.plan else None


def _bar(label: str, value: float, of: float, color: str) -> list[Part]:
    full = round(BAR * min(1.0, max(0.0, value / of))) if of else 0
    size = format_bytes(value)
    share = f" {value / of:4.0%}" if of else ""
    bar: list[Part] = [("━" * full, color), ("─" * (BAR - full), theme.EDGE)]
    return [(f"{neutralise(label):<16}", theme.DIM), *bar, (f" {size:>8}{share}", theme.TEXT)]


def _row(label: str, value: str) -> list[Part]:
    return [(f"{label:<16}", theme.DIM), (value, theme.TEXT)]


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else format_duration(seconds)


def _join(rows: Sequence[Sequence[Part]]) -> Content:
    return Content("\n").join(Content.assemble(*row) for row in rows)
