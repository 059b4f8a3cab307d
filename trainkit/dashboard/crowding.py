"""How often the viewer draws by itself: less often where the machine has nothing to spare for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

#: Linux tells here for how long this thread ran, and for how long it was ready and had to wait for a processor: both
#: nanoseconds (Documentation/scheduler/sched-stats.rst). Elsewhere there is no such file, and nothing is ever crowded.
STATISTICS = Path("/proc/self/schedstat")
#: Seconds over which they are compared.
WINDOW = 2.0
#: The machine is crowded from this share of waiting in what the viewer wanted to run, and no longer below the other.
ENTER, LEAVE = 0.1, 0.04


class Crowding:
    """Whether somebody else, most likely the trainer, wants the processors that the viewer would use."""

    def __init__(self, read: Callable[[], str] = STATISTICS.read_text, clock: Callable[[], float] = time.monotonic):
        self._read, self._clock = read, clock
        self._at, self._seen = clock(), self._look()
        self._crowded = False

    def crowded(self) -> bool:
        now = self._clock()
        if now - self._at >= WINDOW:
            seen = self._look()
            ran, waited = (new - old for new, old in zip(seen, self._seen, strict=True))
            self._crowded = waited > (LEAVE if self._crowded else ENTER) * (ran + waited)
            self._at, self._seen = now, seen
        return self._crowded

    def _look(self) -> tuple[int, int]:
        try:
            ran, waited, _ = map(int, self._read().split())
        except (OSError, ValueError):
            return 0, 0
        return ran, waited
