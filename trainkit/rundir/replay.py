"""A run as it went, from its log: the live path at another clock."""

from __future__ import annotations

import time
from pathlib import Path

from trainkit.events.schema import Event
from trainkit.events.view import State, state
from trainkit.rundir.follow import LogFollower

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
#: Seconds of the run in which nothing happened that are played at most: a night between two attempts is left out.
LONGEST_GAP = 10.0


class Replay(LogFollower):
    """The same view as `LogFollower`, as of a moment of the run that moves on by itself.

    Attributes:
        playing: whether it moves on.
        speed: seconds of the run in a second.
        over: whether the last event has been shown.
    """

    def __init__(self, run_directory: Path, *, speed: float = 10.0) -> None:
        super().__init__(run_directory)
        self.speed, self.playing, self.over = speed, True, False
        self._clock: float | None = None
        self._looked_at = time.monotonic()

    def advance(self, *, seconds: float) -> bool:
        until = time.monotonic() + seconds
        self._tick()
        while (event := self._next()) is not None and self._clock is not None and event["t"] <= self._clock:
            self._fold(*self._waiting.pop())
            if time.monotonic() >= until:
                return True
        return False

    def now(self) -> float:
        return time.time() if self._clock is None else self._clock

    def state(self, now: float) -> State:
        return state(self.view, now, alive=True)

    def faster(self, by: int) -> None:
        """To the next higher (1) or lower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - self.speed))
        self.speed = SPEEDS[min(max(0, nearest + by), len(SPEEDS) - 1)]

    def seek(self, step: int) -> None:
        """To just after `step` was done, backwards too; to the end where there is no such step."""
        if step <= self.view.step:
            self._rewind()
        while True:
            if not self._waiting and self._ahead and self._ahead.last < step and self._fold_stretch():
                self._clock = self.view.last_event
                continue
            if (event := self._next()) is None:
                return
            self._clock = event["t"]
            self._fold(*self._waiting.pop())
            if event["type"] == "step" and event["step"] >= step:
                return

    def _rewind(self) -> None:
        super()._rewind()
        self._waiting: list[tuple[int, Event]] = []

    def _next(self) -> Event | None:
        """The event that comes next; it stays the next one until it is taken from `_waiting`."""
        read = -1
        while not self._waiting and read != self._tail.offset:  # lines that are no events are passed over
            read = self._tail.offset
            # the newest last, so that the next one is popped from the end
            self._waiting = self._read()[::-1]
        self.over = not self._waiting
        return self._waiting[-1][1] if self._waiting else None

    def _tick(self) -> None:
        now = time.monotonic()
        passed, self._looked_at = (now - self._looked_at) * self.speed, now
        event = self._next()
        if event is None or not self.playing:
            return
        if self._clock is None:
            self._clock = event["t"]
        self._clock = max(self._clock + passed, event["t"] - LONGEST_GAP)
