"""A trace of a few steps for Perfetto and XProf, and a summary of the operations that took longest."""

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

#: In the run's directory; it holds a directory for each trace, named by its first step.
DIRECTORY = "profile"
SUMMARY = "summary.txt"
#: The summary lists so many operations.
TOP = 30

Event = Mapping[str, Any]


class Operation(NamedTuple):
    """The time of all calls of one operation, without the operations called within it."""

    name: str
    calls: int
    seconds: float


def check_steps(steps: tuple[int, int] | None, *, done: int, total: int) -> None:
    """Raise TrainkitError if an attempt from step `done` to `total` does not do all of `steps`."""
    if steps is None or done < steps[0] <= steps[1] <= total:
        return
    first, last = steps
    if done >= total:
        raise TrainkitError("there is no step left to profile", where=f"--profile {first}:{last}")
    begin = done + 1 if not done < first <= total else first
    hint = f"--profile {begin}:{min(total, begin + last - first)}"
    raise TrainkitError(
        f"this attempt does the steps {done + 1} to {total}", where=f"--profile {first}:{last}", hint=hint
    )


class Profile:
    """Traces the steps from `steps[0]` to `steps[1]`, both included; nothing if `steps` is None.

    A trace that cannot be made or read is an alert; the run continues.
    """

    def __init__(
        self, directory: Path, steps: tuple[int, int] | None, *, log: EventLog, metrics: MetricsWriter
    ) -> None:
        """`directory` is the run's. `metrics` is flushed when a trace begins or ends, and its clock restarts."""
        self._run, self._steps, self._log, self._metrics = directory, steps, log, metrics
        self._into: Path | None = None
        self._began = 0.0

    def before(self, step: int) -> None:
        """Called before every step."""
        if self._steps and step == self._steps[0] and not self._into:
            self._metrics.flush()  # the previous step is not part of the trace
            self._start(step)
            self._metrics.restart_clock()

    def after(self, step: int) -> None:
        """Called after every step is dispatched."""
        if self._into and self._steps and step == self._steps[1]:
            self._metrics.flush()
            self._stop(step)
            self._metrics.restart_clock()

    def close(self, step: int, *, starts_again: bool = False) -> None:
        """End the trace after the loop's last `step`, and warn if there was none, unless the loop `starts_again`."""
        if self._into:
            self._stop(step)
        elif not starts_again and self._steps and step < self._steps[0]:
            message = f"nothing was profiled: the run ended after step {step}, before step {self._steps[0]}"
            self._log.write("log", step=step, level="warning", message=message)

    def _start(self, step: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every Python call is slow, and hides what matters
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
        message = f"profiled steps {self._steps[0]} to {step}: {where}, beside the trace"
        self._log.write("log", step=step, level="info", message=message)

    def _alert(self, step: int, message: str) -> None:
        self._log.write("alert", step=step, kind="profile", message=message)


def trace_of(directory: Path) -> list[Event]:
    """Return the events of the newest trace below a directory, in Chrome's trace format.

    Raises:
        ValueError: there is no trace, or it is not JSON.
        OSError: it cannot be read.
    """
    traces = sorted(directory.glob("plugins/profile/*/*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise ValueError(f"the profiler left no trace in {directory}")
    with gzip.open(traces[-1], "rt", encoding="utf-8") as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return events


def operations(events: Iterable[Event]) -> list[Operation]:
    """Return the operations of the devices, the longest first; a loop or call without the operations within it.

    On a GPU or TPU these are the events of the rows "XLA Ops" of the devices; elsewhere, all events that name an
    operation of XLA.
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
    return _longest_first(Operation(name, calls[name], microseconds[name] / 1e6) for name in calls)


def summary(events: Iterable[Event], *, first: int, last: int, seconds: float) -> list[str]:
    """Return the operations that took longest as lines of text, by kind and one by one.

    Raises:
        ValueError: the trace holds no operation.
    """
    by_operation = operations(events)
    total, calls = sum(o.seconds for o in by_operation), sum(o.calls for o in by_operation)
    if not total:
        raise ValueError("it holds no operation of a device")
    kinds: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in by_operation:
        kinds[kind_of(operation.name)].append(operation)
    by_kind = _longest_first(
        Operation(kind, sum(o.calls for o in members), sum(o.seconds for o in members))
        for kind, members in kinds.items()
    )
    steps = last - first + 1
    return [
        f"steps {first} to {last}: {seconds:.3f} s, {1e3 * seconds / steps:.2f} ms a step",
        f"{total:.3f} s in {calls:,} operations, summed over devices and threads; shares are of this sum",
        "",
        *_table("kind", by_kind[:TOP], total),
        "",
        *_table("operation", by_operation[:TOP], total),
    ]


def _longest_first(operations: Iterable[Operation]) -> list[Operation]:
    return sorted(operations, key=lambda operation: (-operation.seconds, operation.name))


def kind_of(name: str) -> str:
    """Return the kind of an operation: `fusion` for `fusion.12` and `multiply_add_fusion.3.clone`."""
    bare = re.sub(r"(\.(\d+|clone|remat\d*))+$", "", name.removeprefix("%"))
    return "fusion" if bare.endswith("fusion") else bare


def _own_times(events: list[Event]) -> Iterable[tuple[str, float]]:
    """Yield (name, microseconds) of each event of one row, without the events within it."""
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
    width = max(len(title), *(len(row.name) for row in rows))
    head = f"{title:<{width}}  {'calls':>8}  {'total ms':>10}  share"
    return [head] + [
        f"{name:<{width}}  {calls:>8}  {1e3 * seconds:>10.3f}  {seconds / total:>5.1%}" for name, calls, seconds in rows
    ]
