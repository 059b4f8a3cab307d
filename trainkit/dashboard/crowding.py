"""How often the viewer draws by itself: less often where the machine has nothing to spare for it, and the less often
the more it costs there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: Linux tells here for how long this thread ran, and for how long it was ready and had to wait for a processor: both
#: nanoseconds (Documentation/scheduler/sched-stats.rst). Elsewhere there is no such file, and nothing is ever crowded.
STATISTICS = Path("/proc/self/schedstat")
#: Seconds over which they are compared: to find that a machine is crowded, and that it is no longer, of which a moment
#: says nothing, as a viewer that rests hardly ever wants to run.
WINDOW, CALM = 2.0, 20.0
#: Nanoseconds that a processor takes to begin with somebody even where it is idle: no waiting in line.
AWAKING = 100_000
#: The machine is crowded from this share of waiting in what the viewer wanted to run, and no longer below the other.
ENTER, LEAVE = 0.1, 0.04
#: The share of a processor that the viewer may use there.
SHARE = 0.0015


class Crowding:
    """Whether somebody else, most likely the trainer, wants the processors that the viewer would use."""

    def __init__(self, read: Callable[[], str] = STATISTICS.read_text, clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._at, self._seen = clock(), self._look()
        self._crowded = False

    def crowded(self) -> bool:
        now = self._clock()
        if now - self._at >= (CALM if self._crowded else WINDOW):
            seen = self._look()
            ran, waited, times = (new - old for new, old in zip(seen, self._seen, strict=True))
            waited = max(0, waited - AWAKING * times)
            self._crowded = waited > (LEAVE if self._crowded else ENTER) * (ran + waited)
            self._at, self._seen = now, seen
        return self._crowded

    def _look(self) -> tuple[int, int, int]:
        try:
            ran, waited, times = map(int, self._read().split())
        except (OSError, ValueError):
            return 0, 0, 0
        return ran, waited, times


class Turn:
    """When something is drawn again: every so many seconds, or on a crowded machine once all that the viewer did since
    it was drawn last is no more than `SHARE` of the time."""

    def __init__(
        self,
        every: float,
        *,
        crowded: tuple[float, float],
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """`crowded`: the fewest and the most seconds from one to the next there. `spent` tells seconds of processor."""
        self._every, self._bounds = every, crowded
        self._clock, self._spent = clock, spent
        self._at, self._before = float("-inf"), 0.0

    def has_come(self, *, crowded: bool) -> bool:
        wait = self._every
        if crowded:
            least, most = self._bounds
            wait = min(max(least, (self._spent() - self._before) / SHARE), most)
        return self._clock() - self._at >= wait

    def take(self) -> None:
        """It is drawn now."""
        self._at, self._before = self._clock(), self._spent()
