"""What a run looks like: the event log folded into one object, from which every projection that draws is drawn."""

from __future__ import annotations

import socket
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from trainkit.events.attempts import lock_holder, process_alive
from trainkit.events.pace import Pace
from trainkit.events.series import Series

State = Literal[
    "waiting", "starting", "caching", "compiling", "running", "evaluating", "saving", "paused", "stopping",
    "stalled", "crashed", "finished", "stopped", "interrupted", "failed",
]  # fmt: skip
#: How an attempt ends that says so, and how loud a line of the log is.
End = Literal["finished", "stopped", "interrupted", "failed"]
ENDS: tuple[End, ...] = get_args(End)
Level = Literal["info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)

#: Seconds of silence after which a living trainer counts as stalled: at least, and during what is one long work.
SILENCE, SILENCE_WORKING = 60.0, 900.0


class Marker(NamedTuple):
    """Something at a step: kind is "evaluation", "checkpoint", "resume", "alert" or "command"."""

    step: int
    kind: str
    text: str


class SampleText(NamedTuple):
    """All inert but `image`, which is a path within the run directory or empty, and may be hostile.

    `predictions` are (label, probability), the likeliest first; `expected` is the right label, empty where none is
    known.
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
    step: int
    kind: str
    path: str
    bytes: int
    t: float


class CacheProgress(NamedTuple):
    documents: int
    bytes: int
    tokens: int
    total_bytes: int | None
    done: bool


@dataclass(kw_only=True)
class View:
    """The reduced state of one run, as of its last event. `state(view, …)` says what it is doing."""

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
    #: Seconds that earlier attempts took, the time between them not counted.
    earlier: float = 0.0
    plan: dict[str, Any] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    cache: dict[str, CacheProgress] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    markers: deque[Marker] = field(default_factory=lambda: deque(maxlen=10_000))
    samples: deque[SampleText] = field(default_factory=lambda: deque(maxlen=64))
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=500))
    #: Grows with every line and every sample, so that a panel knows whether it is out of date.
    told: int = 0
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
        """Seconds of all attempts up to the last event; None where there is none yet."""
        if self.started is None or self.last_event is None:
            return None
        return self.earlier + max(0.0, self.last_event - self.started)

    @property
    def eta(self) -> float | None:
        """Seconds of training left, evaluations and checkpoints not counted; None where unknown or over."""
        return None if self.finished else self.pace.remaining(self.step, self.total_steps)

    @property
    def tokens_per_second(self) -> float | None:
        """The median of the last steps; None where unknown."""
        series = self.series.get("throughput/tokens_per_second")
        return statistics.median(series.values[-21:]) if series else None

    def validation_sets(self) -> list[str]:
        """The names of the sets that have been evaluated, in order of appearance."""
        return [n[len("validation/") : -len("/loss")] for n in self.series if _is_validation_loss(n)]

    def last(self, metric: str) -> float | None:
        """The newest value of a metric, None where there is none."""
        return self.series[metric].last if metric in self.series else None


def state(view: View, now: float, alive: bool, resuming: bool = False) -> State:
    """What the run is doing at `now` (Unix seconds), honestly: `alive` says whether its process still lives, `resuming`
    whether another one is about to take its place."""
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
    """Whether the process of the last attempt lives. Of another host's process nothing is known: it counts as alive."""
    if view.pid is None:
        return False
    return view.host != socket.gethostname() or process_alive(view.pid, view.process_started)


def resuming(view: View, run_directory: Path) -> bool:
    """Whether a process of this host has begun another attempt, of which the log says nothing yet."""
    holder = lock_holder(run_directory) if view.host == socket.gethostname() else None
    return holder is not None and holder != view.pid


def _patience(view: View) -> float:
    if view.activity in ("starting", "caching", "compiling", "evaluating", "saving"):
        return SILENCE_WORKING
    return max(SILENCE, 20 * (view.pace.step_seconds or 0), 3 * view.longest_evaluation)


def _is_validation_loss(name: str) -> bool:
    return name.startswith("validation/") and name.endswith("/loss")
