"""A trace of a few steps: what host and devices did, for Perfetto and XProf, and in words what took most."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.train.metrics import MetricsWriter

#: In the run's directory: a directory for each first step that was profiled.
DIRECTORY = "profile"
SUMMARY = "summary.txt"
#: Operations that the summary names.
TOP = 30

Event = Mapping[str, Any]


class Operation(NamedTuple):
    """What was spent on all calls of one operation, without what was called within them."""

    name: str
    calls: int
    seconds: float


def check_steps(steps: tuple[int, int] | None, *, done: int, total: int) -> None:
    """Raise TrainkitError where an attempt that goes on after `done` steps to `total` does not do all of `steps`."""
    if steps is None or done < steps[0] <= steps[1] <= total:
        return
    first, last = steps
    if done >= total:
        raise TrainkitError("there is no step left to be profiled", where=f"--profile {first}:{last}")
    begin = done + 1 if not done < first <= total else first
    fitting = f"--profile {begin}:{min(total, begin + last - first)}"
    raise TrainkitError(
        f"this attempt does the steps {done + 1} to {total}", where=f"--profile {first}:{last}", hint=fitting
    )


class Profile:
    """Traces the steps from `steps[0]` to `steps[1]`, both included; nothing where `steps` is None.

    A trace that cannot be taken or read is an alert, never a failed run.
    """

    def __init__(self, directory: Path, steps: tuple[int, int] | None, *, log: EventLog, meter: MetricsWriter) -> None:
        """`directory` is the run's. The meter waits for the device before a trace ends, and its clock is set right."""
        self._run, self._steps, self._log, self._meter = directory, steps, log, meter
        self._into: Path | None = None
        self._began = 0.0

    def before(self, step: int) -> None:
        """Called before every step."""
        if self._steps and step == self._steps[0] and not self._into:
            self._meter.flush()  # the step before is not part of it
            self._start(step)
            self._meter.restart_clock()

    def after(self, step: int) -> None:
        """Called after every step, when it has been dispatched."""
        if self._into and self._steps and step == self._steps[1]:
            self._meter.flush()
            self._stop(step)
            self._meter.restart_clock()

    def close(self, step: int, *, starts_again: bool = False) -> None:
        """The loop is over after `step`, maybe before all was traced that was to be; or it `starts_again`."""
        if self._into:
            self._stop(step)
        elif not starts_again and self._steps and step < self._steps[0]:
            message = f"nothing was profiled: the run ended after step {step}, before step {self._steps[0]}"
            self._log.write("log", step=step, level="warning", message=message)

    def _start(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call of every function: slow to write, and hides what matters
        into = self._run / DIRECTORY / str(step)
        if into.exists():
            into = into.with_name(f"{step}-attempt-{self._log.attempt}")
        try:
            jax.profiler.start_trace(into, create_perfetto_trace=True, profiler_options=options)
        except (RuntimeError, OSError) as error:
            self._alert(step, f"step {step} cannot be profiled: {error}")
        else:
            self._into, self._began = into, time.perf_counter()

    def _stop(self, step: int) -> None:
        assert self._into and self._steps
        into, self._into = self._into, None
        seconds = time.perf_counter() - self._began
        try:
            jax.profiler.stop_trace()
            lines = summary(trace_of(into), first=self._steps[0], last=step, seconds=seconds)
            (into / SUMMARY).write_text("\n".join(lines) + "\n", encoding="utf-8")
        except (RuntimeError, ValueError, OSError) as error:
            self._alert(step, f"the trace of steps {self._steps[0]} to {step} cannot be written or read: {error}")
            return
        where = (into / SUMMARY).relative_to(self._run)
        message = f"profiled steps {self._steps[0]} to {step}: {where}, and beside it the trace"
        self._log.write("log", step=step, level="info", message=message)

    def _alert(self, step: int, message: str) -> None:
        self._log.write("alert", step=step, kind="profile", message=message)


def trace_of(directory: Path) -> list[Event]:
    """The events of the newest trace below a directory, as Chrome's trace format has them.

    Raises ValueError where there is none, or it is none of JSON, and OSError.
    """
    traces = sorted(directory.glob("plugins/profile/*/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise ValueError(f"the profiler left no trace in {directory}")
    with gzip.open(traces[-1], "rt", encoding="utf-8") as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return events


def operations(events: Iterable[Event]) -> list[Operation]:
    """What the devices did, the longest first; of a loop or a call only what is not in the operations within it.

    On a GPU or TPU these are the events of the devices' own rows "XLA Ops", where there are any; elsewhere all events
    that XLA has named an operation of.
    """
    events = list(events)
    rows = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event.get("args", {}).get("name") == "XLA Ops"
    }
    by_row: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") != "X":
            continue
        row = event["pid"], event["tid"]
        if row in rows if rows else "hlo_op" in event.get("args", {}):
            by_row[row].append(event)
    calls: Counter[str] = Counter()
    microseconds: defaultdict[str, float] = defaultdict(float)
    for row_events in by_row.values():
        for name, own in _own_times(row_events):
            calls[name] += 1
            microseconds[name] += own
    found = [Operation(name, calls[name], microseconds[name] / 1e6) for name in calls]
    return sorted(found, key=lambda one: (-one.seconds, one.name))


def summary(events: Iterable[Event], *, first: int, last: int, seconds: float) -> list[str]:
    """The operations that took most, in lines of text: by kind, and one by one.

    Raises ValueError where the trace holds no operation.
    """
    found = operations(events)
    total = sum(one.seconds for one in found)
    if not found or not total:
        raise ValueError("it holds no operation of a device")
    kinds: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in found:
        kinds[kind_of(one.name)].append(one)
    sums = [Operation(kind, sum(a.calls for a in all_), sum(a.seconds for a in all_)) for kind, all_ in kinds.items()]
    by_kind = sorted(sums, key=lambda one: (-one.seconds, one.name))
    steps, calls = last - first + 1, sum(one.calls for one in found)
    return [
        f"steps {first} to {last}: {seconds:.3f} s, {1e3 * seconds / steps:.2f} ms a step",
        f"{total:.3f} s in {calls:,} operations, added up over devices and threads: that of which the shares are",
        "",
        *_table("kind", by_kind[:TOP], total),
        "",
        *_table("operation", found[:TOP], total),
    ]


def kind_of(name: str) -> str:
    """`fusion` of `fusion.12` and `multiply_add_fusion.3.clone`."""
    bare = re.sub(r"(\.(\d+|clone|remat\d*))+$", "", name.removeprefix("%"))
    return "fusion" if bare.endswith("fusion") else bare


def _own_times(events: list[Event]) -> Iterable[tuple[str, float]]:
    """(name, microseconds) of each event of one row, without the events that lie within it."""
    open_: list[tuple[str, float, float]] = []  # name, end, own time so far
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        begin, took = float(event["ts"]), float(event["dur"])
        while open_ and open_[-1][1] <= begin:
            name, _, own = open_.pop()
            yield name, own
        if open_:
            name, end, own = open_.pop()
            open_.append((name, end, max(0.0, own - min(took, end - begin))))
        open_.append((str(event.get("args", {}).get("hlo_op") or event["name"]), begin + took, took))
    yield from ((name, own) for name, _, own in open_)


def _table(title: str, rows: list[Operation], total: float) -> list[str]:
    width = max(len(title), *(len(one.name) for one in rows))
    head = f"{title:<{width}}  {'calls':>8}  {'total ms':>10}  share"
    return [head] + [
        f"{name:<{width}}  {calls:>8}  {1e3 * seconds:>10.3f}  {seconds / total:>5.1%}" for name, calls, seconds in rows
    ]
