"""The metrics of the steps of a range, read from the log again."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from trainkit.events.reducer import record
from trainkit.events.schema import FOREIGN
from trainkit.events.series import Series
from trainkit.events.tail import NAME, parse

#: The most steps of a range whose points are read one by one.
MOST = 20_000


class CurrentSteps:
    """Knows where the current steps are in a log: after each mark, from its byte on, the steps beyond the mark's step.

    Of steps that a resumed attempt repeated, only the last lines are current.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / NAME
        self._marks: list[tuple[float, int]] = [(-1, 0)]

    @property
    def marked(self) -> int:
        """Return the byte of the last mark."""
        return self._marks[-1][1]

    def mark(self, step: float, offset: int) -> None:
        """Mark that the steps beyond `step` are from byte `offset` on, and not before it."""
        while self._marks and self._marks[-1][0] >= step:
            self._marks.pop()
        self._marks.append((step, offset))

    def points(self, low: float, high: float) -> dict[str, Series]:
        """Return every point of every metric from step `low` to `high`, inclusive, by metric in order of appearance.

        There are none if the range is wider than `MOST` steps, or if the log cannot be read. Any thread may call it.
        """
        marks = self._marks.copy()
        points: dict[str, Series] = {}
        if high - low > MOST:
            return points
        first = max(0, bisect_left(marks, (low, -1)) - 1)
        try:
            with self._path.open("rb") as log:
                for (after, begin), (until, end) in pairwise([*marks[first:], (math.inf, -1)]):
                    if after > high:
                        break
                    _collect(points, log, begin, end, low=max(low, after), high=min(high, until))
        except OSError:
            pass
        return points


def _collect(points: dict[str, Series], log: BinaryIO, begin: int, end: int, *, low: float, high: float) -> None:
    """Add the points of these steps from byte `begin` on, until a step beyond them, byte `end`, or an attempt without a
    mark, which a replay has not reached yet."""
    log.seek(begin)
    first = begin
    for line in log:
        for _, event in parse(line):
            if event["type"] == "step" and event["step"] > high:
                return
            if event["type"] == "run_started" and begin > first:
                return
            if event["type"] in ("step", "evaluated") and low <= event["step"] <= high:
                with contextlib.suppress(*FOREIGN):
                    record(points, event, limit=None)
        begin += len(line)
        if begin == end:
            return
