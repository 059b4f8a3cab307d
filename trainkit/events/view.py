"""What a run looks like: the event log folded into one object, from which every projection that draws is drawn."""

from __future__ import annotations

import socket
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from trainkit.events import plain
from trainkit.events.log import number
from trainkit.events.pace import Pace
from trainkit.events.process import process_alive
from trainkit.events.schema import Event
from trainkit.events.series import Series

State = Literal[
    "waiting", "starting", "caching", "compiling", "running", "evaluating", "saving", "paused", "stopping",
    "stalled", "crashed", "finished", "stopped", "interrupted", "failed",
]  # fmt: skip

#: Kinds that the log panel tells, beside what it shows elsewhere.
TOLD = frozenset(
    {"run_started", "planned", "compiled", "evaluated", "checkpoint_saved", "control", "alert", "log", "run_finished"}
)
#: Seconds of silence after which a living trainer counts as stalled: at least, and while it compiles or starts.
SILENCE, SILENCE_COMPILING = 60.0, 900.0


class Marker(NamedTuple):
    """Something at a step: kind is "evaluation", "checkpoint", "resume", "alert" or "command"."""

    step: int
    kind: str
    text: str


class Sample(NamedTuple):
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


class Line(NamedTuple):
    """A line of the log; level is "info", "warning" or "error". The text is inert."""

    t: float
    level: str
    text: str


class Checkpoint(NamedTuple):
    step: int
    kind: str
    path: str
    bytes: int
    t: float


class Cache(NamedTuple):
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
    plan: dict[str, Any] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    cache: dict[str, Cache] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    markers: deque[Marker] = field(default_factory=lambda: deque(maxlen=10_000))
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=64))
    log: deque[Line] = field(default_factory=lambda: deque(maxlen=500))
    #: Grows with every line and every sample, so that a panel knows whether it is out of date.
    told: int = 0
    alerts: deque[Line] = field(default_factory=lambda: deque(maxlen=100))
    checkpoints: list[Checkpoint] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    #: The step that is being saved, if any.
    saving: int | None = None
    paused: bool = False
    stopping: bool = False
    longest_evaluation: float = 0.0
    activity: State = "waiting"
    finished: Literal["finished", "stopped", "interrupted", "failed"] | None = None
    message: str = ""

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


def reduce(view: View, event: Event) -> None:
    """Fold one event into `view`, in constant time but for the first of a resumed attempt."""
    view.last_event = event["t"]
    view.attempt = event["attempt"]
    view.pace.add(event)
    if fold := _FOLDS.get(event["type"]):
        fold(view, event)
    if event["type"] in TOLD:
        _tell(view, event)


def state(view: View, now: float, alive: bool) -> State:
    """What the run is doing at `now` (Unix seconds), honestly: `alive` says whether its process still lives."""
    if view.last_event is None:
        return "waiting"
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


def _patience(view: View) -> float:
    if view.activity in ("starting", "compiling", "evaluating"):
        return SILENCE_COMPILING
    return max(SILENCE, 20 * (view.pace.step_seconds or 0), 3 * view.longest_evaluation)


def _run_started(view: View, event: Event) -> None:
    view.name, view.host = event["name"], event["host"]
    view.pid, view.process_started = event["pid"], event["process_started"]
    view.versions = {plain.inert(name): plain.inert(version) for name, version in event["versions"].items()}
    view.started = event["t"]
    view.activity, view.finished, view.message = "starting", None, ""
    view.paused = view.stopping = False
    view.saving = None
    view.pace = Pace()
    view.cache.clear()
    view.plan = {}
    resumed_from = event["resumed_from"]
    _forget(view, after=-1 if resumed_from is None else resumed_from)
    view.step = resumed_from or 0
    if resumed_from is not None:
        view.markers.append(Marker(resumed_from, "resume", f"attempt {event['attempt']}"))


def _forget(view: View, *, after: int) -> None:
    """Drop what an earlier attempt did beyond the step from which this one goes on: it is done again."""
    for name in list(view.series):
        view.series[name].cut(after)
        if not view.series[name]:
            del view.series[name]
    view.markers = deque((m for m in view.markers if m.step <= after), maxlen=view.markers.maxlen)
    view.samples = deque((s for s in view.samples if s.step <= after), maxlen=view.samples.maxlen)
    view.checkpoints = [c for c in view.checkpoints if c.step <= after]


def _planned(view: View, event: Event) -> None:
    view.total_steps = event["total_steps"]
    view.plan, view.devices = event["plan"], event["devices"]
    view.activity = "compiling"


def _cache_progress(view: View, event: Event) -> None:
    view.cache[event["what"]] = Cache(
        event["documents"], event["bytes"], event["tokens"], event["total_bytes"], event["done"]
    )
    if view.activity in ("starting", "caching", "compiling"):
        done = all(cache.done for cache in view.cache.values())
        view.activity = "caching" if not done else "compiling" if view.plan else "starting"


def _step(view: View, event: Event) -> None:
    view.step = event["step"]
    view.activity = "running"
    _record(view, event)


def _record(view: View, event: Event) -> None:
    for name, value in event["metrics"].items():
        if name not in view.series:
            view.series[name] = Series()
        view.series[name].add(event["step"], number(value))


def _evaluation_started(view: View, event: Event) -> None:
    view.activity = "evaluating"


def _evaluated(view: View, event: Event) -> None:
    view.activity = "running"
    _record(view, event)
    view.longest_evaluation = max(view.longest_evaluation, event["seconds"])
    view.markers.append(Marker(event["step"], "evaluation", event["name"]))


def _sampled(view: View, event: Event) -> None:
    image, expected = event.get("image", ""), plain.one_line(event.get("expected", ""))
    told = plain.inert(event["prompt"]), plain.inert(event["text"])
    view.samples.append(Sample(event["step"], *told, image, tuple(plain.predictions(event)), expected))
    view.told += 1


def _checkpoint_started(view: View, event: Event) -> None:
    view.saving = event["step"]
    if view.activity == "running":
        view.activity = "saving"


def _checkpoint_saved(view: View, event: Event) -> None:
    view.saving = None
    if view.activity == "saving":
        view.activity = "running"
    view.checkpoints.append(Checkpoint(event["step"], event["kind"], event["path"], event["bytes"], event["t"]))
    view.markers.append(Marker(event["step"], "checkpoint", event["kind"]))


def _control(view: View, event: Event) -> None:
    told = f"rate {event['argument']}" if event["command"] == "rate" else event["command"]
    view.markers.append(Marker(event["step"], "command", told))
    view.total_steps = event.get("total_steps") or view.total_steps
    match event["command"]:
        case "pause":
            view.paused = True
        case "continue":
            view.paused = False
        case "stop":
            view.stopping, view.paused = True, False


def _alert(view: View, event: Event) -> None:
    view.alerts.append(Line(event["t"], "error", plain.inert(f"{event['kind']}: {event['message']}")))
    view.markers.append(Marker(event["step"], "alert", event["kind"]))


def _run_finished(view: View, event: Event) -> None:
    view.finished, view.message = event["status"], plain.inert(event["message"])
    view.saving, view.paused, view.stopping = None, False, False


def _tell(view: View, event: Event) -> None:
    told = plain.text(event)
    assert told is not None
    match event["type"]:
        case "log":
            level = event["level"]
        case "alert":
            level = "error"
        case "run_finished" if event["status"] == "failed":
            level = "error"
        case _:
            level = "info"
    view.log.append(Line(event["t"], level, told))
    view.told += 1


def _is_validation_loss(name: str) -> bool:
    return name.startswith("validation/") and name.endswith("/loss")


_FOLDS: dict[str, Callable[[View, Event], None]] = {
    "run_started": _run_started,
    "planned": _planned,
    "cache_progress": _cache_progress,
    "step": _step,
    "evaluation_started": _evaluation_started,
    "evaluated": _evaluated,
    "sampled": _sampled,
    "checkpoint_started": _checkpoint_started,
    "checkpoint_saved": _checkpoint_saved,
    "control": _control,
    "alert": _alert,
    "run_finished": _run_finished,
}
