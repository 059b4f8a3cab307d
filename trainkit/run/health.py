"""What a person should hear of while a run goes on: what is suspicious about its data, and a disk that fills."""

from __future__ import annotations

import math
import time
from pathlib import Path

from trainkit.checkpoint import store
from trainkit.data.cache.build import Cache
from trainkit.data.checks.supervision import find_problems
from trainkit.errors import TrainkitError
from trainkit.events.alerts import disk_alert
from trainkit.events.log import EventLog
from trainkit.recipe import Recipe


class DataHealth:
    """Looks before the first step, and again once all is tokenised where it was not."""

    def __init__(self, cache: Cache, recipe: Recipe, log: EventLog) -> None:
        self._cache, self._recipe, self._log = cache, recipe, log
        self._looked = self._done = False

    def look(self) -> None:
        """Tell what is found. Costs nothing where nothing has changed.

        Raises:
            TrainkitError: training would learn nothing, or break.
        """
        complete = self._cache.train.complete
        if self._done or (self._looked and not complete):
            return
        self._looked, self._done = True, complete
        for finding in find_problems(self._cache, self._recipe):
            if finding.level == "error":
                raise TrainkitError(
                    finding.message,
                    where="data",
                    hint="trainkit inspect RECIPE --first 3 shows what would be learned",
                )
            if complete:
                self._log.write("log", step=self._log.step, level=finding.level, message=finding.message)


class DiskSpace:
    """Says when the next checkpoints may not fit any more; again only after there was room."""

    #: Seconds between two looks.
    EVERY = 30.0

    def __init__(self, directory: Path, checkpoint_bytes: int, log: EventLog, *, keep_last: int) -> None:
        """`keep_last` checkpoints of this size are there at once, and the one that is being written."""
        self._directory, self._bytes, self._log = directory, checkpoint_bytes, log
        self._keep_last = keep_last
        self._looked, self._told = -math.inf, False

    def look(self) -> None:
        if time.monotonic() - self._looked < self.EVERY:
            return
        self._looked = time.monotonic()
        missing = max(0, self._keep_last - len(store.step_directories(self._directory)))
        message = disk_alert(self._directory, (1 + missing) * self._bytes)
        if message and not self._told:
            self._log.write("alert", step=self._log.step, kind="disk", message=message)
        self._told = message is not None
