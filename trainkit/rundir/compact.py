"""Make the log of a finished run small, as `trainkit runs --compact` does.

Of the steps, a small log keeps the newest and evenly spaced earlier ones; between two of these it keeps the lowest and
the highest loss, and the first and the last that is not finite. The time of a step that it keeps is the mean since the
one before, so that sums over time stay what they were. Of other events it omits only progress of caching, and lines
that no trainer wrote. Checkpoints, results and exports stay as they are.

`compacted.json` says which log is the small one, so that the checkpoints of the run, which know the log as it was, do
not report it as damaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainkit import files
from trainkit.errors import TrainkitError
from trainkit.events import index
from trainkit.events.attempts import CurrentEvents
from trainkit.events.damage import COMPACTED
from trainkit.events.mark import MARK
from trainkit.events.schema import Event
from trainkit.events.tail import LONGEST_LINE, NAME, last_attempt, last_end, number, of_kinds, parse
from trainkit.rundir.directory import disk_errors, hold_lock, is_training

#: About so many evenly spaced steps remain, and so many of the newest.
SPACED, NEWEST = 2000, 512
#: The distances between them.
_DISTANCES = [factor * 10**power for power in range(12) for factor in (1, 2, 5)]
#: The metrics that decide which steps remain, and that is summed over the steps that do not.
_LOSS, _SECONDS = "train/loss", "time/step"


@dataclass(frozen=True)
class Sizes:
    """What a small log would have of a log, or has: bytes before and after, steps before and after."""

    before: int
    after: int
    steps_before: int
    steps_after: int


class _Step(NamedTuple):
    number: int
    loss: float
    seconds: float
    line: bytes


def is_finished(directory: Path) -> bool:
    """Return whether a run has ended as its recipe says, and no process trains it."""
    return last_end(directory) == "finished" and not is_training(directory)


def measure(directory: Path) -> Sizes:
    """Return what `compact` would do to the log of a run. Reads the log twice, and changes nothing."""
    small = _SmallLog(directory)
    after = sum(map(len, small.lines()))
    return Sizes((directory / NAME).stat().st_size, after, small.steps, small.kept)


def compact(directory: Path, *, moved: Callable[[int], None] = lambda size: None) -> Sizes:
    """Replace the log of a finished run by a small one; `moved` is called with its size just before.

    Raises TrainkitError if the run is not finished, or the disk refuses.
    """
    with disk_errors(directory, then="compact it again"), hold_lock(directory):
        if last_end(directory) != "finished":
            raise TrainkitError("the run is not finished, so its log stays as it is", where=str(directory))
        path, small = directory / NAME, _SmallLog(directory)
        before, size, checksum = path.stat().st_size, 0, 0
        with files.replace_file(path) as draft:
            for line in small.lines():
                draft.write(line)
                size, checksum = size + len(line), files.checksum(line, checksum)
            record = {"bytes": size, "crc32": files.as_digits(checksum), "attempt": last_attempt(directory)}
            sizes = Sizes(before, size, small.steps, small.kept)
            # before the log itself: until that is replaced, checkpoints still know it
            files.write_json(directory / COMPACTED, {**record, **asdict(sizes)})
            (directory / MARK).unlink(missing_ok=True)
            moved(size)
        (directory / index.NAME).unlink(missing_ok=True)
        return sizes


class _SmallLog:
    """The lines of a small log. `steps` and `kept` count the steps that count, once all lines have been read."""

    def __init__(self, directory: Path) -> None:
        self._path, self._directory = directory / NAME, directory
        started = CurrentEvents(of_kinds(directory, "run_started"))
        counting = filter(started.keeps, of_kinds(directory, "run_started", "step"))
        self._last = max((event["step"] for event in counting if event["type"] == "step"), default=0)
        self._distance = next(d for d in _DISTANCES if d * SPACED >= self._last)
        self.steps = self.kept = 0

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the small log."""
        self.steps = self.kept = 0
        current = CurrentEvents(of_kinds(self._directory, "run_started"))
        waiting: list[_Step | bytes] = []
        window = 0
        for event, line in self._events():
            counts = current.keeps(event)
            if event["type"] == "step":
                if not counts:
                    continue
                self.steps += 1
                step = _step_of(event, line)
                if (at := -(-step.number // self._distance)) != window:
                    yield from self._chosen(waiting)
                    waiting, window = [], at
                waiting.append(step)
            elif event["type"] == "run_started":  # steps before and after it may have the same numbers
                yield from self._chosen(waiting)
                waiting, window = [], -1
                yield line
            elif event["type"] != "cache_progress" or event["done"]:
                waiting.append(line)
        yield from self._chosen(waiting)

    def _events(self) -> Iterator[tuple[Event, bytes]]:
        with self._path.open("rb") as log:
            while line := log.readline(LONGEST_LINE):
                for _, event in parse(line):
                    yield event, line if line.endswith(b"\n") else line + b"\n"

    def _chosen(self, waiting: list[_Step | bytes]) -> Iterator[bytes]:
        """Yield the lines that remain of one window: of steps at equal distances up to the next."""
        steps = [entry for entry in waiting if isinstance(entry, _Step)]
        finite = sorted((step for step in steps if math.isfinite(step.loss)), key=lambda step: step.loss)
        broken = [step for step in steps if not math.isfinite(step.loss)]
        remain = {step.number for step in (*finite[:1], *finite[-1:], *broken[:1], *broken[-1:], *steps[-1:])}
        remain |= {step.number for step in steps if step.number > self._last - NEWEST}
        seconds: list[float] = []
        for entry in waiting:
            if isinstance(entry, bytes):
                yield entry
                continue
            seconds.append(entry.seconds)
            if entry.number in remain:
                self.kept += 1
                yield entry.line if len(seconds) == 1 else _with_seconds(entry.line, sum(seconds) / len(seconds))
                seconds = []


def _step_of(event: Event, line: bytes) -> _Step:
    values: dict[str, Any] = event["metrics"]
    try:
        return _Step(event["step"], number(values.get(_LOSS, 0.0)), number(values.get(_SECONDS, 0.0)), line)
    except (TypeError, ValueError):  # no trainer wrote it
        return _Step(event["step"], math.nan, 0.0, line)


def _with_seconds(line: bytes, seconds: float) -> bytes:
    event = json.loads(line)
    if _SECONDS in event["metrics"] and math.isfinite(seconds):
        event["metrics"][_SECONDS] = seconds
    return json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
