"""The state of a run: the event log reduced to one object, from which every display is drawn."""

from __future__ import annotations

import math
import socket
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trainkit.events.attempts import lock_holder, process_alive
from trainkit.events.layers import LayerHistory
from trainkit.events.schema import Event
from trainkit.events.series import Series

State = Literal[
    "waiting", "starting", "caching", "compiling", "running", "evaluating", "saving", "paused", "stopping",
    "stalled", "crashed", "finished", "stopped", "interrupted", "failed",
]  # fmt: skip
#: The recorded ends of an attempt (`crashed` if it was refused after one that crashed), and the levels of log lines.
End = Literal["finished", "stopped", "interrupted", "failed", "crashed"]
ENDS: tuple[End, ...] = get_args(End)
Level = Literal["info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)

#: The fewest seconds of silence after which a living trainer counts as stalled, in general and during one long task.
SILENCE, SILENCE_WORKING = 60.0, 900.0
#: Steps that count as recent.
RECENT = 101


class Pace:
    """Seconds per step, as the median of recent steps, so that a pause, an evaluation or a hiccup does not move it."""

    def __init__(self, seconds: Iterable[float] = (), last: tuple[int, float] | None = None) -> None:
        """Continue from the `seconds` and `last` of another pace."""
        #: Seconds of each of the recent steps.
        self.seconds: deque[float] = deque(seconds, maxlen=RECENT)
        #: Number and Unix seconds of the last step, if the last event was a step.
        self.last = last

    def add(self, event: Event) -> None:
        """Take the next event of any kind. A step without a recorded duration is timed from the step directly before
        it."""
        if event["type"] != "step":
            self.last = None
            return
        step, t, last = event["step"], event["t"], self.last
        self.last = (step, t)
        if "time/step" in event["metrics"]:
            seconds = float(event["metrics"]["time/step"])
            if math.isfinite(seconds):
                self.seconds.append(seconds)
        elif last and step > last[0] and t >= last[1]:
            self.seconds.append((t - last[1]) / (step - last[0]))

    @property
    def step_seconds(self) -> float | None:
        """Return the median seconds of a step; None before the first."""
        return statistics.median(self.seconds) if self.seconds else None

    def seconds_left(self, step: int, total_steps: int | None) -> float | None:
        """Return the seconds of training left after `step`, without evaluations and checkpoints; None if unknown."""
        seconds = self.step_seconds
        if seconds is None or total_steps is None:
            return None
        return max(0, total_steps - step) * seconds


class Marker(NamedTuple):
    """Something to mark at a step: "evaluation", "checkpoint", "resume", "alert" or "command"."""

    step: int
    kind: str
    text: str


class SampleText(NamedTuple):
    """One sample. All texts are inert, except `image`: a path within the run directory or empty, and possibly hostile.

    `predictions` are (label, probability), the likeliest first; `expected` is the right label, empty if unknown.
    """

    step: int
    prompt: str
    text: str
    image: str = ""
    predictions: tuple[tuple[str, float], ...] = ()
    expected: str = ""


class LogLine(NamedTuple):
    """A line of the log. The text is inert."""

    t: float
    level: Level
    text: str


class SavedCheckpoint(NamedTuple):
    """A checkpoint as the log records it: its path within the run directory, and Unix seconds."""

    step: int
    kind: str
    path: str
    bytes: int
    t: float


class CacheProgress(NamedTuple):
    """How much of a data set is tokenised so far."""

    documents: int
    bytes: int
    tokens: int
    total_bytes: int | None
    done: bool


@dataclass(kw_only=True)
class View:
    """The state of one run as of its last event. `state(view, …)` says what it is doing."""

    name: str = ""
    attempt: int = 0
    host: str = ""
    pid: int | None = None
    process_started: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    step: int = 0
    total_steps: int | None = None
    #: Unix seconds of the first event of this attempt and of the last event.
    started: float | None = None
    last_event: float | None = None
    #: Seconds that earlier attempts took, without the time between them.
    earlier: float = 0.0
    plan: dict[str, Any] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    cache: dict[str, CacheProgress] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    layers: LayerHistory = field(default_factory=LayerHistory)
    markers: deque[Marker] = field(default_factory=lambda: deque(maxlen=10_000))
    samples: deque[SampleText] = field(default_factory=lambda: deque(maxlen=64))
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=500))
    #: Lines and samples so far, so that a panel knows whether it is out of date.
    entries: int = 0
    alerts: deque[LogLine] = field(default_factory=lambda: deque(maxlen=100))
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    #: The step that is being saved, if any.
    saving: int | None = None
    paused: bool = False
    stopping: bool = False
    longest_evaluation: float = 0.0
    activity: State = "waiting"
    finished: End | None = None
    message: str = ""

    @property
    def took(self) -> float | None:
        """Return the seconds of all attempts up to the last event; None before the first event."""
        if self.started is None or self.last_event is None:
            return None
        return self.earlier + max(0.0, self.last_event - self.started)

    @property
    def eta(self) -> float | None:
        """Return the seconds of training left, without evaluations and checkpoints; None if unknown or over."""
        return None if self.finished else self.pace.seconds_left(self.step, self.total_steps)

    @property
    def tokens_per_second(self) -> float | None:
        """Return the median of the recent steps; None if unknown."""
        series = self.series.get("throughput/tokens_per_second")
        return statistics.median(series.values[-21:]) if series else None

    def validation_sets(self) -> list[str]:
        """Return the names of the sets that have been evaluated, in order of appearance."""
        return [n[len("validation/") : -len("/loss")] for n in self.series if _is_validation_loss(n)]

    def last(self, metric: str) -> float | None:
        """Return the newest value of a metric; None without one."""
        return self.series[metric].last if metric in self.series else None


def state(view: View, now: float, alive: bool, resuming: bool = False) -> State:
    """Return what the run is doing at `now` (Unix seconds).

    Args:
        alive: whether the process of its last attempt lives.
        resuming: whether another process is about to replace it.
    """
    if view.last_event is None:
        return "waiting"
    if resuming and (view.finished or not alive):
        return "starting"
    if view.finished:
        return view.finished
    if not alive:
        return "crashed"
    if view.paused:
        return "paused"
    if now - view.last_event > _patience(view):
        return "stalled"
    return "stopping" if view.stopping else view.activity


def alive(view: View) -> bool:
    """Return whether the process of the last attempt lives; True if it is on another host, because that is unknown
    here."""
    if view.pid is None:
        return False
    return view.host != socket.gethostname() or process_alive(view.pid, view.process_started)


def is_resuming(view: View, run_directory: Path) -> bool:
    """Return whether a process of this host has started another attempt that is not in the log yet."""
    holder = lock_holder(run_directory) if view.host == socket.gethostname() else None
    return holder is not None and holder != view.pid


def _patience(view: View) -> float:
    if view.activity in ("starting", "caching", "compiling", "evaluating", "saving"):
        return SILENCE_WORKING
    return max(SILENCE, 20 * (view.pace.step_seconds or 0), 3 * view.longest_evaluation)


def _is_validation_loss(name: str) -> bool:
    return name.startswith("validation/") and name.endswith("/loss")
