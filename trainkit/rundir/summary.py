"""What is known of the runs of a directory, read cheaply: there may be hundreds, and the log of one may be a gigabyte.

Of a log, every line is read that is no step, and of the steps those at its end and a sample of those before. So state,
step, last loss, pace and the best validation losses are exact; the curve of the training loss is a sample.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from trainkit.errors import TrainkitError
from trainkit.events.log import NAME, STEP, file_of, is_replaced
from trainkit.events.reducer import reduce
from trainkit.events.schema import COMMON, FOREIGN, SCHEMA, Event, well_formed
from trainkit.events.series import Extreme, Series
from trainkit.events.view import State, View, alive, resuming, state
from trainkit.rundir import recipes
from trainkit.rundir.checkpoint_files import kept

#: Bytes at the end of a log that are read whole (more than a hundred steps of fifty metrics), steps before them that
#: are, bytes that a line may have, and lines after which a reader asks whether it is to stop.
TAIL, SAMPLE, LONGEST_LINE, LINES = 1 << 18, 128, 1 << 24, 4096
#: What is kept of a step.
LOSS, SPEED = "train/loss", "throughput/tokens_per_second"
_METRICS = (LOSS, SPEED, "time/step")
#: Points of a curve, and seconds after which the size of a run that grows is measured again.
POINTS, MEASURE_EVERY = 16, 60.0
#: The states of a run whose trainer has gone.
ENDED: frozenset[State] = frozenset({"waiting", "crashed", "finished", "stopped", "interrupted", "failed"})


class RunSummary(NamedTuple):
    """A run at a glance; `state` is None where no event can be read, `problem` (inert) says why; it is `broken` where
    there is no use in opening it.

    `curve` is the training loss over equal stretches of steps, the mean of the sampled steps of each, nan where none
    was finite. `best` are the validation losses by set. `eta` is in seconds.
    """

    state: State | None = None
    problem: str = ""
    broken: bool = False
    step: int = 0
    total: int | None = None
    loss: float | None = None
    speed: float | None = None
    eta: float | None = None
    last_event: float | None = None
    attempt: int = 0
    message: str = ""
    curve: tuple[float, ...] = ()
    best: Mapping[str, Extreme] = {}


class SummaryReader:
    """What is known of one run. A thread reads; what it leaves in the attributes below never changes afterwards.

    Attributes:
        facts: None until the log has been read.
        size: bytes on disk, None until they have been counted.
        kept: the steps of the checkpoints that are marked to be kept, in ascending order.
        recipe: the values by their dotted keys, None where there is no recipe that can be read.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.facts: RunSummary | None = None
        self.size: int | None = None
        self.kept: tuple[int, ...] = ()
        self.recipe: Mapping[str, str] | None = None
        self._begin()
        self._measured: tuple[int, float] | None = None

    def _begin(self) -> None:
        self._view, self._offset, self._foreign, self._newer = View(), 0, False, 0
        self._file: tuple[int, int] | None = None
        self._read_of: object = None
        #: The log and the lock at the last reading, None where it could not be finished.
        self._seen: object = None

    def read(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Read what is new in the log, and check whether the trainer is alive.

        A log that has not changed is not opened, and of a run that has ended nothing is worked out again until its log
        or its lock changes: a list of hundreds of runs is read every second.
        """
        seen = _file_states(self.directory)
        unchanged = seen is not None and seen == self._seen
        if unchanged and self.facts and (self.facts.broken or self.facts.state in ENDED):
            self.kept = tuple(sorted(kept(self.directory)))
            return
        self._seen = None
        try:
            if not unchanged:
                self._fold(stop)
            facts = self._facts()
        except OSError as error:
            facts, seen = _without_log(self.directory, error), None  # it may pass: the next reading tries again
        except FOREIGN:
            self._foreign = True
            facts = self._facts()
        if stop():
            return
        # with how it ended, because an attempt that is refused puts the recipe before it back
        read_of = (self._view.attempt, self._view.started, self._view.finished)
        if read_of != self._read_of or self.facts is None:
            self._read_of, self.recipe = read_of, _recipe(self.directory)
        self.facts, self.kept = facts, tuple(sorted(kept(self.directory)))
        self._seen = seen

    def measure(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Count the bytes on disk, where the run has grown since a while ago."""
        now = time.monotonic()
        if self._measured and (self._measured[0] == self._offset or now - self._measured[1] < MEASURE_EVERY):
            return
        total = sum(_bytes(self.directory, stop))
        if not stop():
            self._measured, self.size = (self._offset, now), total

    def _fold(self, stop: Callable[[], bool]) -> None:
        for event in self._new(stop):
            if event["type"] == "run_started":
                self._newer = max(self._newer, event["schema"])
            if "metrics" in event and event["type"] == "step":
                event["metrics"] = {name: value for name, value in event["metrics"].items() if name in _METRICS}
            reduce(self._view, event)

    def _new(self, stop: Callable[[], bool]) -> Iterator[Event]:
        """The events since the last call that are worth a look."""
        with (self.directory / NAME).open("rb") as file:
            found = os.fstat(file.fileno())
            if is_replaced(found, self._file, self._offset):
                self._begin()
            self._file = file_of(found)
            if self._foreign:
                return
            file.seek(self._offset)
            size = found.st_size
            every, sampled, number = (size - self._offset) // SAMPLE, self._offset, 0
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                number += 1
                if number % LINES == 0 and stop():
                    return
                at, self._offset = self._offset, self._offset + len(line)
                if line.startswith(STEP) and at < size - TAIL:
                    if at < sampled:
                        continue
                    sampled = at + every
                if (event := _event(line)) is not None:
                    yield event
            if len(line) == LONGEST_LINE:
                raise ValueError("no line is as long as this")

    def _facts(self) -> RunSummary:
        view, now = self._view, time.time()
        if self._foreign:
            return RunSummary(problem="its log has lines that no trainkit wrote", broken=True)
        if view.last_event is None:
            return RunSummary(problem="its log holds no event" if self._offset else "its log is empty")
        doing = state(view, now, alive(view), resuming(view, self.directory))
        newer = f"written by a newer trainkit (schema {self._newer}): not all of it may be shown"
        return RunSummary(
            state=doing,
            problem=newer if self._newer > SCHEMA else "",
            step=view.step,
            total=view.total_steps,
            loss=view.last(LOSS),
            speed=view.tokens_per_second,
            eta=None if doing in ENDED else view.eta,
            last_event=view.last_event,
            attempt=view.attempt,
            message=view.message,
            curve=curve(view.series.get(LOSS) or Series()),
            best={
                name: best
                for name in view.validation_sets()
                if (best := view.series[f"validation/{name}/loss"].lowest) is not None
            },
        )


def is_run(directory: Path) -> bool:
    """Whether a directory holds a run: a recipe as resolved or an event log, however short."""
    return (directory / NAME).is_file() or (directory / recipes.FILE).is_file()


def curve(series: Series, points: int = POINTS) -> tuple[float, ...]:
    """The mean of a series over so many equal stretches of steps; a stretch without a step is left out."""
    if not series:
        return ()
    first, last = series.steps[0], series.steps[-1]
    sums, counts, seen = [0.0] * points, [0] * points, [False] * points
    for step, value in zip(series.steps, series.values, strict=True):
        place = min(points - 1, int((step - first) / (last - first) * points)) if last > first else 0
        seen[place] = True
        if math.isfinite(value):
            sums[place] += value
            counts[place] += 1
    return tuple(sums[i] / counts[i] if counts[i] else math.nan for i in range(points) if seen[i])


def _file_states(directory: Path) -> list[tuple[int, ...]] | None:
    """Return what changes whenever the log grows or a trainer takes or frees the run; None where there is no log."""
    states: list[tuple[int, ...]] = []
    for name in (NAME, "lock"):
        try:
            status = os.stat(directory / name)
            states.append((*file_of(status), status.st_size, status.st_mtime_ns))
        except OSError:
            if name == NAME:
                return None
            states.append(())
    return states


def _event(line: bytes) -> Event | None:
    """An event; None where the line is torn or says something else."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not COMMON.keys() <= event.keys():
        return None
    if not well_formed(event):
        raise TypeError("a field that holds something else")
    return event


def _recipe(directory: Path) -> Mapping[str, str] | None:
    try:
        return recipes.values(directory)
    except TrainkitError:
        return None


def _without_log(directory: Path, error: OSError) -> RunSummary:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return RunSummary(problem=f"its log cannot be read: {error.strerror}", broken=True)
    if is_run(directory):
        return RunSummary(problem="no log yet")
    there = directory.is_dir()
    return RunSummary(problem="no run: neither log nor recipe" if there else "a link to nowhere", broken=True)


def _bytes(directory: Path, stop: Callable[[], bool]) -> Iterator[int]:
    """What each thing below a directory takes; links are not followed, what goes away meanwhile takes nothing."""
    waiting = [os.fspath(directory)]
    while waiting and not stop():
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
