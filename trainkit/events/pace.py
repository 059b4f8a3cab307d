"""How fast a run goes and when it will be there, from its recent steps alone."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

from trainkit.events.schema import Event

#: Steps that count as recent.
RECENT = 101


class Pace:
    """Seconds per step as the median of the recent steps: a pause, an evaluation or a hiccup does not move it."""

    def __init__(self, seconds: Iterable[float] = (), last: tuple[int, float] | None = None) -> None:
        """Go on from where another one was, by its `seconds` and `last`."""
        #: Of the recent steps.
        self.seconds: deque[float] = deque(seconds, maxlen=RECENT)
        #: Number and Unix seconds of the step just before, if the last event was one.
        self.last = last

    def add(self, event: Event) -> None:
        """Take any event. A step that does not say how long it took is timed by the one directly before it."""
        if event["type"] != "step":
            self.last = None
            return
        step, t, last = event["step"], event["t"], self.last
        self.last = (step, t)
        if "time/step" in event["metrics"]:
            seconds = float(event["metrics"]["time/step"])
            if math.isfinite(seconds):
                self.seconds.append(seconds)
        elif last and step > last[0] and t >= last[1]:
            self.seconds.append((t - last[1]) / (step - last[0]))

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of a step, None before there are any."""
        return statistics.median(self.seconds) if self.seconds else None

    def remaining(self, step: int, total_steps: int | None) -> float | None:
        """Seconds of training left after `step`, evaluations and checkpoints not counted; None where unknown."""
        seconds = self.step_seconds
        if seconds is None or total_steps is None:
            return None
        return max(0, total_steps - step) * seconds
