"""What the log of a trial shows while it grows: how far it is, how long it trained, and its metric on the way."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from trainkit.events.attempts import kept_until
from trainkit.events.schema import Event
from trainkit.events.tail import Tail, number
from trainkit.rundir.seeds import LOSS

#: Into how many parts the steps are divided where trials are compared by the training loss.
PARTS = 10


class Report(NamedTuple):
    """The metric of a trial on the way: its value at a step."""

    step: int
    value: float


class Progress:
    """Follows the log of one trial."""

    def __init__(self, run: Path, metric: str) -> None:
        self.step = 0
        self._tail, self._metric = Tail(run), metric
        self._kind = "evaluated" if metric.startswith("validation/") else "step"
        self._values: dict[int, float] = {}
        self._times: dict[int, tuple[float, float]] = {}
        self._total = 0

    @property
    def seconds(self) -> float:
        """Return how long it trained: for each attempt from its first event to its last."""
        return math.fsum(last - first for first, last in self._times.values())

    def read(self) -> None:
        """Read what has been added to the log."""
        while events := self._tail.poll():
            for event in events:
                self._take(event)

    def reports(self) -> list[Report]:
        """Return the metric on the way, without the end: at each evaluation, or of the training loss, which is noisy,
        the mean of each tenth of the steps."""
        if self._metric != LOSS:
            return [Report(step, value) for step, value in sorted(self._values.items()) if step < self._total]
        ends = [self._total * part // PARTS for part in range(PARTS)]
        reports = []
        for begin, end in pairwise(ends):
            values = [self._values[step] for step in range(begin + 1, end + 1) if step in self._values]
            if values and self.step >= end:
                reports.append(Report(end, math.fsum(values) / len(values)))
        return reports

    def _take(self, event: Event) -> None:
        first, _ = self._times.get(event["attempt"], (event["t"], event["t"]))
        self._times[event["attempt"]] = first, event["t"]
        self.step = max(self.step, event["step"])
        if (cut := kept_until(event)) is not None:
            self.step = max(cut, 0)
            self._values = {step: value for step, value in self._values.items() if step <= cut}
        if event["type"] in ("planned", "control"):  # a command, or a time, may move the end
            self._total = event.get("total_steps") or self._total
        if event["type"] == self._kind and self._metric in event["metrics"]:
            self._values[event["step"]] = number(event["metrics"][self._metric])
