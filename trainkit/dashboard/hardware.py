"""The machine in words: step times, what its memory is planned for and holds, its devices, its host and its cores."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from textual.content import Content

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
#: Cells of a bar.
BAR = 14

Part = tuple[str, str]


def machine_facts(view: View) -> Content:
    """All that is known, in sections."""
    kinds = (_time, _speed, _plan, _devices, _host, _versions)
    sections = [part for part in (kind(view) for kind in kinds) if part]
    return Content("\n\n").join(map(_section, sections))


def core_lines(view: View, width: int) -> list[Content]:
    """How busy each core of the host is, a block of eighths for each, on lines of at most `width` cells."""
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
    """The metrics below a prefix, by the number after it."""
    names = [name for name in view.series if name.startswith(prefix)]
    return sorted(names, key=lambda name: (len(name), name))


def devices_in_words(view: View) -> str:
    """Return how many devices there are of each kind: `8 × NVIDIA A100`; the log has `gpu:0 NVIDIA A100` for each."""
    kinds = Counter(one_line(NUMBERED.sub("", name)) for name in view.devices)
    return ", ".join(f"{number} × {kind}" for kind, number in sorted(kinds.items()))


def planned_bytes(view: View) -> int:
    """What a device is planned to hold; 0 where there is no plan yet."""
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
        *_parts(view, math.fsum(steps) / len(steps)),
    ]


def _parts(view: View, seconds: float) -> list[list[Part]]:
    """What else the loop did in a step that takes so long, and what it did between steps."""
    rows = []
    for part in ("dispatch", "device"):
        if (spent := _recent(view, f"time/{part}")) and seconds > 0:
            mean = math.fsum(spent) / len(spent)
            rows.append([*_row(part, _seconds(mean)), (f"  {min(1.0, mean / seconds):.1%} of the time", theme.TEXT)])
    between = {part: _recent(view, f"time/{part}") for part in ("evaluation", "checkpoint")}
    told = {
        part: f"{_seconds(statistics.median(spent))} each, between steps" for part, spent in between.items() if spent
    }
    return rows + [_row(part, words) for part, words in told.items()]


def _speed(view: View) -> list[list[Part]]:
    """What a second brings; nothing where the trainer did not tell its FLOP/s."""
    names = ("tokens_per_second", "samples_per_second", "model_tflops", "mfu")
    told = {name: _recent(view, f"throughput/{name}") for name in names}
    if not told["model_tflops"]:
        return []
    median = {name: statistics.median(values) for name, values in told.items() if values}
    rows = [[("throughput", f"bold {theme.BRIGHT}"), ("  median", theme.TEXT)]]
    units = [unit for unit in ("tokens", "samples") if f"{unit}_per_second" in median]
    rows += [_row(f"{unit}/s", format_count(median[f"{unit}_per_second"])) for unit in units]
    rows.append(_row("model TFLOP/s", format_quantity(median["model_tflops"])))
    unknown = "n/a: their peak is unknown"
    return [*rows, _row("MFU", f"{median['mfu']:.1%}" if "mfu" in median else unknown)]


def _recent(view: View, metric: str) -> list[float]:
    """The finite ones of the last values of a metric."""
    return [v for v in view.series[metric].values[-RECENT:] if math.isfinite(v)] if metric in view.series else []


def _plan(view: View) -> list[list[Part]]:
    head: list[Part] = [("planned for each device", f"bold {theme.BRIGHT}")]
    total = planned_bytes(view)
    if not total:
        return [head, [("no estimate yet: the run is planned before its first step", theme.DIM)]]
    limit = _limit(view)
    head.append((f"  {format_bytes(total)}" + (f" of {format_bytes(limit)}" if limit else ""), theme.TEXT))
    parts: Mapping[str, int] = view.plan["bytes"]
    order = sorted(parts, key=lambda what: -parts[what])
    return [head, *(_bar(what.replace("_", " "), parts[what], total, theme.TRAIN) for what in order)]


def _devices(view: View) -> list[list[Part]]:
    head: list[Part] = [("devices", f"bold {theme.BRIGHT}")]
    if not view.devices:
        return [head, [("not known before the run is planned", theme.DIM)]]
    head.append((f"  {devices_in_words(view)}", theme.TEXT))
    rows, total, limit = [head], planned_bytes(view), _limit(view)
    told: dict[str, list[str]] = {}
    forms = (
        (PEAK, lambda value: f"at most {format_bytes(value)}"),
        (POWER, "{:.0f} W".format),
        (TEMPERATURE, "{:.0f} °C".format),
        (UTILIZATION, "busy {:.0%} of the time".format),
    )
    for prefix, form in forms:
        for name in metrics_below(view, prefix):
            told.setdefault(name[len(prefix) :], []).append(form(view.series[name].values[-1]))
    for name in metrics_below(view, DEVICES):
        used = view.series[name].values[-1]
        of = limit or total
        full = used / of if of else 0.0
        color = theme.BAD if limit and full > 0.97 else theme.WARN if limit and full > 0.9 else theme.SPEED
        rows.append(_bar(neutralise(name[len(DEVICES) :]), used, of, color))
        if total and limit:
            rows.append(_row("", f"{used / total:.0%} of what was planned"))
        if words := told.pop(name[len(DEVICES) :], None):
            rows.append(_row("", ", ".join(words)))
    if len(rows) == 1:
        rows.append([("their memory is not reported; a CPU uses the host's", theme.DIM)])
    rows += [_row(neutralise(device), ", ".join(words)) for device, words in told.items()]
    return rows


def _host(view: View) -> list[list[Part]]:
    rows: list[list[Part]] = [[("host", f"bold {theme.BRIGHT}"), (f"  {neutralise(view.host)}", theme.TEXT)]]
    if (memory := view.last("memory/host")) is not None:
        rows.append(_row("memory", format_bytes(memory)))
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
    full = round(BAR * min(1.0, max(0.0, value / of))) if of else 0
    size = format_bytes(value)
    share = f" {value / of:4.0%}" if of else ""
    bar: list[Part] = [("━" * full, color), ("─" * (BAR - full), theme.EDGE)]
    return [(f"{neutralise(label):<16}", theme.DIM), *bar, (f" {size:>8}{share}", theme.TEXT)]


def _row(label: str, value: str) -> list[Part]:
    return [(f"{label:<16}", theme.DIM), (value, theme.TEXT)]


def _seconds(seconds: float) -> str:
    return (
        f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s" if seconds < 60 else format_duration(seconds)
    )


def _section(rows: Sequence[Sequence[Part]]) -> Content:
    return Content("\n").join(Content.assemble(*row) for row in rows)
