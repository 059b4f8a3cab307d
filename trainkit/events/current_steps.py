"""Where a log tells the steps of its current course: of what a resumed attempt did again, only the last telling."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import BinaryIO

from trainkit.events.log import NAME, number, parse
from trainkit.events.schema import FOREIGN, Event
from trainkit.events.series import Series

#: Steps of a range whose points are told one by one, at most.
MOST = 20_000


class CurrentSteps:
    """Marks, at most one a step, in the order of both: from this byte of the log on, what lies beyond it is told."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / NAME
        self._marks: list[tuple[float, int]] = [(-1, 0)]

    @property
    def marked(self) -> int:
        """The byte of the last mark."""
        return self._marks[-1][1]

    def mark(self, step: float, offset: int) -> None:
        """From byte `offset` on, the log tells what lies beyond `step`; what was told of that before is given up."""
        while self._marks and self._marks[-1][0] >= step:
            self._marks.pop()
        self._marks.append((step, offset))

    def points(self, low: float, high: float) -> dict[str, Series]:
        """Every point of every metric from step `low` to `high`, both included, by metric in order of appearance.

        Empty where the range is wider than `MOST` steps, and where no log can be read. Any thread may call it.
        """
        marks = self._marks.copy()
        found: dict[str, Series] = {}
        if high - low > MOST:
            return found
        first = max(0, bisect_left(marks, (low, -1)) - 1)
        try:
            with self._path.open("rb") as log:
                for (begun, begin), (ended, end) in pairwise([*marks[first:], (inf, -1)]):
                    if begun > high:
                        break
                    _collect(found, log, begin, end, low=max(low, begun), high=min(high, ended))
        except OSError:
            pass
        return found


def record(found: dict[str, Series], event: Event) -> None:
    """Add every metric of an event to its series, which has no limit.

    What it may raise where no trainer wrote the event is `schema.FOREIGN`.
    """
    for name, told in event["metrics"].items():
        value = number(told)  # before the series is made: what no trainer wrote leaves no empty one behind
        if name not in found:
            found[name] = Series(limit=None)
        found[name].add(event["step"], value)


def _collect(found: dict[str, Series], log: BinaryIO, begin: int, end: int, *, low: float, high: float) -> None:
    """Add what the bytes from `begin` tell of these steps, until a step beyond them comes, or `end` is reached, or an
    attempt begins that nobody has marked: to who replays the log, it lies in the future."""
    log.seek(begin)
    beginning = begin
    for line in log:
        for _, event in parse(line):
            if event["type"] == "step" and event["step"] > high:
                return
            if event["type"] == "run_started" and begin > beginning:
                return
            if event["type"] in ("step", "evaluated") and low <= event["step"] <= high:
                with contextlib.suppress(*FOREIGN):
                    record(found, event)
        begin += len(line)
        if begin == end:
            return
