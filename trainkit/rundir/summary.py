"""Cheap summaries of the runs of a directory: there may be hundreds, and one log may have gigabytes.

All lines of a log that are not steps are read, and of the steps those at the end and a sample of the earlier ones. So
state, step, last loss, pace and the best validation losses are exact; the curve of the training loss is a sample.
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
from trainkit.events.reducer import reduce
from trainkit.events.schema import COMMON, FOREIGN, SCHEMA, Event, well_formed
from trainkit.events.series import Extreme, Series
from trainkit.events.tail import LONGEST_LINE, NAME, STEP, file_of, is_replaced
from trainkit.events.view import State, View, alive, is_resuming, state
from trainkit.rundir import recipes
from trainkit.rundir.checkpoint_files import kept_steps

#: Bytes at the end of a log that are read whole (over a hundred steps of fifty metrics), steps sampled before them,
#: the most bytes of a line, and the number of lines after which a reader checks whether to stop.
TAIL, SAMPLE, LINES = 1 << 18, 128, 4096
#: The metrics of a step that are kept.
LOSS, SPEED = "train/loss", "throughput/tokens_per_second"
_METRICS = (LOSS, SPEED, "time/step")
#: Points of a curve, and seconds between two measurements of the size of a growing run.
POINTS, MEASURE_EVERY = 16, 60.0
#: The states of a run whose trainer has gone.
ENDED: frozenset[State] = frozenset({"waiting", "crashed", "finished", "stopped", "interrupted", "failed"})


class RunSummary(NamedTuple):
    """The state and results of a run, for a list of runs.

    Attributes:
        state: None if no event can be read.
        problem: why; inert text.
        broken: whether the run cannot be opened.
        curve: the training loss over equal ranges of steps, each the mean of its sampled steps; nan if none is finite.
        best: the lowest validation loss of each set.
        eta: seconds of training left.
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
    """Reads and keeps the summary of one run. A thread reads; the objects in these attributes never change afterwards.

    Attributes:
        facts: None until the log has been read.
        size: bytes on disk; None until they have been counted.
        kept: the steps of the checkpoints that are marked to be kept, in ascending order.
        recipe: the values by their dotted keys; None if the recipe is missing or cannot be read.
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
        #: The state of the log's and the lock's file at the last complete reading; None if it was not completed.
        self._seen: object = None

    def read(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Read what is new in the log, and check whether the trainer is alive.

        A list of hundreds of runs calls this every second. So a log that has not changed is not opened, and for a run
        that has ended nothing is computed again until its log or its lock changes.
        """
        seen = _file_states(self.directory)
        unchanged = seen is not None and seen == self._seen
        if unchanged and self.facts and (self.facts.broken or self.facts.state in ENDED):
            self.kept = tuple(sorted(kept_steps(self.directory)))
            return
        self._seen = None
        try:
            if not unchanged:
                self._fold(stop)
            facts = self._facts()
        except OSError as error:
            facts, seen = _without_log(self.directory, error), None  # may be temporary: the next call tries again
        except FOREIGN:
            self._foreign = True
            facts = self._facts()
        if stop():
            return
        # `finished` is part of the key because an attempt that is refused restores the recipe before it
        read_of = (self._view.attempt, self._view.started, self._view.finished)
        if read_of != self._read_of or self.facts is None:
            self._read_of, self.recipe = read_of, _recipe(self.directory)
        self.facts, self.kept = facts, tuple(sorted(kept_steps(self.directory)))
        self._seen = seen

    def measure(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Count the bytes on disk if the run has grown since the last count, at most once in a while."""
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
        """Yield the events since the last call that the summary needs."""
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
            return RunSummary(problem="its log has lines that trainkit did not write", broken=True)
        if view.last_event is None:
            return RunSummary(problem="its log holds no event" if self._offset else "its log is empty")
        doing = state(view, now, alive(view), is_resuming(view, self.directory))
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
    """Return whether a directory holds a run: a resolved recipe or an event log."""
    # unlike pathlib, os.path says "no" to a name that is too long
    return os.path.isfile(directory / NAME) or os.path.isfile(directory / recipes.FILE)


def curve(series: Series, points: int = POINTS) -> tuple[float, ...]:
    """Return the mean of a series over equal ranges of steps, at most `points`; ranges without a step are left out."""
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
    """Return the event in a line; None if the line is torn or holds something else."""
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
    return RunSummary(problem="no run: neither log nor recipe" if there else "a broken link", broken=True)


def _bytes(directory: Path, stop: Callable[[], bool]) -> Iterator[int]:
    """Yield the bytes of each entry below a directory. Links are not followed; entries that disappear count nothing."""
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
