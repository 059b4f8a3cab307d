"""The sidecar's work: follow the log, write it to a tracker, and close that when the trainer is gone."""

from __future__ import annotations

import fcntl
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.attempts import MESSAGES, CurrentEvents, process_alive, resumed_step
from trainkit.events.log import Tail
from trainkit.events.schema import FOREIGN, Event
from trainkit.recipe.sections.outputs import Track
from trainkit.track.projections import ABOUT, Name, Projection, TrackerProgress, read_progress, write_progress

#: Kinds of events that a tracker keeps whatever later attempts do again: commands are messages to it.
STAYS = MESSAGES | {"control"}
#: Seconds between two looks at the log.
INTERVAL = 1.0
#: Seconds to wait for a sidecar of an earlier attempt that is about to end.
PATIENCE = 30.0


def follow(run_directory: Path, name: Name, spec: Track) -> TrackerProgress:
    """Copy a run's events until its newest attempt has ended, or its trainer is dead and the log read out.

    Goes on as the same run of the tracker that the sidecar before it wrote. Returns how far it came.

    Raises:
        TrainkitError: the tracker cannot be written, or the log has events that cannot be copied (the others are).
    """
    try:
        with _only_one(run_directory, name):
            while not _copied(run_directory, name, spec):
                pass
    except OSError as error:
        raise TrainkitError(
            f"{ABOUT[name].title} cannot be brought up to date: {error}",
            where=str(run_directory),
            hint=f"once that is mended: trainkit track {run_directory} goes on where it ended",
            exit_code=FAILED,
        ) from error
    done = read_progress(run_directory, name)
    assert done is not None
    return done


def _copied(run_directory: Path, name: Name, spec: Track) -> bool:
    """Whether all is copied: False where the tracker has to be told everything anew."""
    projection = _open(run_directory, name, spec)
    copy = _Copy(run_directory, name, projection)
    try:
        projection.set_recipe(_recipe(run_directory))
        done = copy.to_the_end()
    finally:
        projection.close()
    if done and copy.problems:
        raise TrainkitError(
            f"{len(copy.problems)} of the events cannot be copied; the first: {copy.problems[0]}",
            where=str(run_directory),
            hint=f"the others are; the log itself has them all: trainkit watch {run_directory}",
            exit_code=FAILED,
        )
    return done


def _open(run_directory: Path, name: Name, spec: Track) -> Projection:
    known = read_progress(run_directory, name)
    match name:
        case "aim":
            from trainkit.track.aim_run import AimRun

            return AimRun.open(run_directory, spec, known)
        case "tensorboard":
            from trainkit.track.tensorboard import TensorBoard

            return TensorBoard(run_directory)
        case "wandb":
            from trainkit.track.wandb import WandBRun

            return WandBRun(run_directory, spec, known)


class _Copy:
    """One pass over the log."""

    def __init__(self, run_directory: Path, name: Name, projection: Projection) -> None:
        self._run, self._name, self._projection = run_directory, name, projection
        self._progress = projection.progress
        write_progress(run_directory, name, self._progress)
        self.problems: list[str] = []

    def to_the_end(self) -> bool:
        tail, course = Tail(self._run, offset=self._progress.offset), events_to_copy(self._run, self._progress.offset)
        while True:
            # asked before reading: what a trainer wrote before it died is then read for certain
            over = self._is_over()
            events = tail.poll(limit_bytes=1 << 18)
            for event in events:
                try:
                    if course.keeps(event) and not self._take(event):
                        return False
                except FOREIGN as error:
                    self.problems.append(f"{type(error).__name__}: {error}, in an event of step {event['step']!r}")
            if events:
                self._progress.offset = tail.offset
                write_progress(self._run, self._name, self._progress)
            elif over:
                return True
            else:
                time.sleep(INTERVAL)

    def _take(self, event: Event) -> bool:
        progress = self._progress
        if event["type"] not in STAYS:  # else there would for ever be something to forget
            progress.last_step = max(progress.last_step, event["step"])
        if event["type"] == "run_started":
            resumed = resumed_step(event)
            if resumed < progress.last_step:
                if not self._projection.forget_beyond(resumed):
                    return False
                progress.last_step = resumed
            progress.attempt = event["attempt"]
            progress.pid, progress.process_started = event["pid"], event["process_started"]
            progress.finished = False
        if event["type"] == "run_finished" and event["attempt"] == progress.attempt:
            progress.finished = True
        self._projection.write(event)
        return True

    def _is_over(self) -> bool:
        """Of a log in which no attempt has begun there is nothing to wait for."""
        now = self._progress
        return now.finished or now.pid is None or not process_alive(now.pid, now.process_started)


def events_to_copy(run_directory: Path, offset: int = 0) -> CurrentEvents:
    """Return what says of the events of a log, read in order from byte `offset` on, which are to be copied."""
    return CurrentEvents(_events(run_directory, offset), always=STAYS)


def _events(run_directory: Path, offset: int) -> Iterator[Event]:
    tail = Tail(run_directory, offset=offset)
    while events := tail.poll():
        yield from events


def _recipe(run_directory: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((run_directory / "recipe.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


@contextmanager
def _only_one(run_directory: Path, name: Name) -> Iterator[None]:
    """Two sidecars of one run would write everything twice. The lock goes with the process."""
    with (run_directory / f"{name}.lock").open("w") as file:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrainkitError(
                        f"another process is copying this run into {ABOUT[name].title}",
                        where=str(run_directory),
                        hint="wait until it ends, or end it",
                        exit_code=FAILED,
                    ) from None
                time.sleep(0.2)
        yield
