"""How an event changes the view of a run."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainkit.events import plain_log
from trainkit.events.attempts import kept_until, resumed_step
from trainkit.events.schema import FOREIGN, Event
from trainkit.events.series import LIMIT, Series
from trainkit.events.tail import Tail, number
from trainkit.events.view import (
    ENDS,
    LEVELS,
    CacheProgress,
    Level,
    LogLine,
    Marker,
    Pace,
    SampleText,
    SavedCheckpoint,
    View,
)
from trainkit.text import neutralise, one_line

#: Kinds of events that the log panel shows as lines.
LOGGED = frozenset({
    "run_started", "planned", "compiled", "evaluated", "checkpoint_saved", "exported", "control", "alert", "log",
    "rolled_back", "run_finished",
})  # fmt: skip


def reduce(view: View, event: Event) -> None:
    """Change `view` by one event, in constant time but for the first event of a resumed attempt."""
    if event["type"] == "run_started":
        view.earlier = view.took or 0.0
        view.started = event["t"]
    view.last_event = event["t"]
    view.attempt = event["attempt"]
    view.pace.add(event)
    if fold := _FOLDS.get(event["type"]):
        fold(view, event)
    if event["type"] in LOGGED:
        _add_line(view, event)


def view_of(run_directory: Path) -> View:
    """Return the view of a run by its whole log, read line by line. Lines that no trainer wrote are ignored."""
    view, tail = View(), Tail(run_directory)
    while events := tail.poll():
        for event in events:
            with contextlib.suppress(*FOREIGN):
                reduce(view, event)
    return view


def _run_started(view: View, event: Event) -> None:
    view.name, view.host = event["name"], event["host"]
    view.pid, view.process_started = event["pid"], event["process_started"]
    view.versions = {neutralise(name): neutralise(version) for name, version in event["versions"].items()}
    view.activity, view.finished, view.message = "starting", None, ""
    view.paused = view.stopping = False
    view.saving = None
    view.pace = Pace()
    view.cache.clear()
    view.plan = {}
    last_kept = kept_until(event)
    assert last_kept is not None
    _cut(view, last_kept)
    view.step = resumed_step(event)
    if event["resumed_from"] is not None:
        view.markers.append(Marker(view.step, "resume", f"attempt {event['attempt']}"))


def _cut(view: View, after: int) -> None:
    for name in list(view.series):
        view.series[name].cut(after)
        if not view.series[name]:
            del view.series[name]
    view.layers.cut(after)
    view.markers = deque((m for m in view.markers if m.step <= after), maxlen=view.markers.maxlen)
    view.samples = deque((s for s in view.samples if s.step <= after), maxlen=view.samples.maxlen)
    view.checkpoints = [c for c in view.checkpoints if c.step <= after]


def _planned(view: View, event: Event) -> None:
    _check_plan(event["plan"], event["devices"])
    view.total_steps = event["total_steps"]
    view.plan, view.devices = event["plan"], event["devices"]
    view.activity = "compiling"


def _check_plan(plan: dict[str, Any], devices: list[Any]) -> None:
    """Raise an error of `FOREIGN` if no trainer wrote this plan: pages add up its numbers and join its names."""
    sizes = [plan.get(name) or 0 for name in ("parameters", "tokens_per_step", "sequence_length")]
    sizes += plan.get("bytes", {}).values()
    if "batch" in plan:
        sizes += [plan["batch"][name] for name in ("global_size", "micro", "accumulation", "replicas")]
    if stages := plan.get("stages"):
        sizes += [plan["steps"], plan["total_tokens"], *(s[name] for s in stages for name in ("begin", "batch_size"))]
    if "devices" in plan and plan["devices"]["memory_bytes"] is not None:
        sizes.append(plan["devices"]["memory_bytes"])
    if not math.isfinite(sum(sizes)) or not all(isinstance(device, str) for device in devices):
        raise ValueError("this is not a plan")


def _cache_progress(view: View, event: Event) -> None:
    view.cache[event["what"]] = CacheProgress(
        event["documents"], event["bytes"], event["tokens"], event["total_bytes"], event["done"]
    )
    if view.activity in ("starting", "caching", "compiling"):
        done = all(cache.done for cache in view.cache.values())
        view.activity = "caching" if not done else "compiling" if view.plan else "starting"


def _step(view: View, event: Event) -> None:
    view.step = event["step"]
    view.activity = "running"
    record(view.series, event)


def record(series: dict[str, Series], event: Event, *, limit: int | None = LIMIT) -> None:
    """Add every metric of an event to its series; a new series has this `limit`.

    Raises an error of `schema.FOREIGN` if no trainer wrote the event.
    """
    for name, written in event["metrics"].items():
        value = number(written)  # before a series is created: a value that is no number leaves no empty series behind
        if name not in series:
            series[name] = Series(limit=limit)
        series[name].add(event["step"], value)


def _statistics(view: View, event: Event) -> None:
    values = {path: array("d", map(number, written)) for path, written in event["values"].items()}
    view.layers.add(event["step"], values)


def _evaluation_started(view: View, event: Event) -> None:
    view.activity = "evaluating"


def _evaluated(view: View, event: Event) -> None:
    view.activity = "running"
    record(view.series, event)
    view.longest_evaluation = max(view.longest_evaluation, event["seconds"])
    view.markers.append(Marker(event["step"], "evaluation", event["name"]))


def _sampled(view: View, event: Event) -> None:
    image, expected = event.get("image", ""), one_line(event.get("expected", ""))
    prompt, text = neutralise(event["prompt"]), neutralise(event["text"])
    view.samples.append(SampleText(event["step"], prompt, text, image, tuple(plain_log.predictions(event)), expected))
    view.entries += 1


def _checkpoint_started(view: View, event: Event) -> None:
    view.saving = event["step"]
    if view.activity == "running":
        view.activity = "saving"


def _checkpoint_saved(view: View, event: Event) -> None:
    view.saving = None
    if view.activity == "saving":
        view.activity = "running"
    view.checkpoints.append(SavedCheckpoint(event["step"], event["kind"], event["path"], event["bytes"], event["t"]))
    view.markers.append(Marker(event["step"], "checkpoint", event["kind"]))


def _control(view: View, event: Event) -> None:
    name = f"rate {event['argument']}" if event["command"] == "rate" else event["command"]
    view.markers.append(Marker(event["step"], "command", name))
    view.total_steps = event.get("total_steps") or view.total_steps
    match event["command"]:
        case "pause":
            view.paused = True
        case "continue":
            view.paused = False
        case "stop":
            view.stopping, view.paused = True, False


def _alert(view: View, event: Event) -> None:
    view.alerts.append(LogLine(event["t"], "error", neutralise(f"{event['kind']}: {event['message']}")))
    view.markers.append(Marker(event["step"], "alert", event["kind"]))


def _rolled_back(view: View, event: Event) -> None:
    view.alerts.append(LogLine(event["t"], "error", neutralise(f"rolled back: {event['message']}")))
    view.markers.append(Marker(event["step"], "alert", "rollback"))


def _run_finished(view: View, event: Event) -> None:
    if event["status"] not in ENDS:
        raise ValueError("this is not how a run ends")
    view.finished, view.message = event["status"], neutralise(event["message"])
    view.saving, view.paused, view.stopping = None, False, False


def _add_line(view: View, event: Event) -> None:
    text = plain_log.text(event)
    assert text is not None
    level: Level = "info"
    match event["type"]:
        case "log" if event["level"] in LEVELS:
            level = event["level"]
        case "alert" | "rolled_back":
            level = "error"
        case "run_finished" if event["status"] in ("failed", "crashed") or (
            event["status"] == "finished" and event["exit_code"]
        ):
            level = "error"
    view.log.append(LogLine(event["t"], level, text))
    view.entries += 1


_FOLDS: dict[str, Callable[[View, Event], None]] = {
    "run_started": _run_started,
    "planned": _planned,
    "cache_progress": _cache_progress,
    "step": _step,
    "statistics": _statistics,
    "evaluation_started": _evaluation_started,
    "evaluated": _evaluated,
    "sampled": _sampled,
    "checkpoint_started": _checkpoint_started,
    "checkpoint_saved": _checkpoint_saved,
    "control": _control,
    "alert": _alert,
    "rolled_back": _rolled_back,
    "run_finished": _run_finished,
}
