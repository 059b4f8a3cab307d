"""Where the dashboard's view comes from: the log, read in slices so that the longest one opens without a freeze."""

from __future__ import annotations

import time
from pathlib import Path

from trainkit.events.log import Tail
from trainkit.events.view import State, View, alive, reduce, state

#: Bytes parsed at once (a millisecond or two), and seconds between two looks at the trainer's process.
SLICE_BYTES, LOOK_EVERY = 1 << 17, 1.0


class Source:
    """A view of a run that follows its log."""

    def __init__(self, run_directory: Path) -> None:
        self._tail = Tail(run_directory)
        self.view = View()
        self._alive, self._looked = True, 0.0

    def advance(self, *, seconds: float) -> bool:
        """Fold what is new, for about `seconds` at most; whether there is more."""
        until = time.monotonic() + seconds
        while events := self._tail.poll(limit_bytes=SLICE_BYTES):
            for event in events:
                reduce(self.view, event)
            if time.monotonic() >= until:
                return True
        return False

    def now(self) -> float:
        """The moment that is shown, in Unix seconds."""
        return time.time()

    def state(self, now: float) -> State:
        """What the run is doing at `now` (Unix seconds)."""
        if abs(now - self._looked) >= LOOK_EVERY:
            self._alive, self._looked = alive(self.view), now
        return state(self.view, now, self._alive)
