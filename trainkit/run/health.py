"""Checks while a run trains: its data, its disk, its trackers."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import NamedTuple

from trainkit.checkpoint import store
from trainkit.checkpoint.arrays import FILES_PER_ARRAY
from trainkit.data.cache.token_cache import Cache
from trainkit.data.checks import find_problems
from trainkit.errors import TrainkitError
from trainkit.events.disk_space import disk_alert
from trainkit.events.log import EventLog
from trainkit.parallel import hosts
from trainkit.recipe import Recipe
from trainkit.recipe.sections.outputs import Track
from trainkit.track.sidecar import Sidecars

#: Seconds that the end of a run waits for its trackers and, after a SIGTERM, for its exports.
TRACKER_SECONDS = 60.0


class DataHealth:
    """Checks the training data before the first step, and again once it is completely tokenised."""

    def __init__(self, cache: Cache, recipe: Recipe, log: EventLog) -> None:
        self._cache, self._recipe, self._log = cache, recipe, log
        self._checked = self._complete = False

    def check(self) -> None:
        """Log problems of the data. Does nothing if no more data was tokenised since the last call.

        Raises:
            TrainkitError: training would learn nothing, or break.
        """
        complete = self._cache.train.complete
        if self._complete or (self._checked and not complete):
            return
        self._checked, self._complete = True, complete
        for problem in find_problems(self._cache, self._recipe):
            if problem.level == "error":
                raise TrainkitError(
                    problem.message,
                    where="data",
                    hint="trainkit inspect RECIPE --first 3 shows what would be learned",
                )
            if complete:
                self._log.write("log", step=self._log.step, level=problem.level, message=problem.message)


class DiskSpace:
    """Writes an alert if the next checkpoints may not fit on the disk, and another only after there was room."""

    #: Seconds between two checks.
    EVERY = 30.0

    def __init__(
        self, directory: Path, checkpoint_bytes: int, log: EventLog, *, keep_last: int, arrays: int = 0
    ) -> None:
        """The disk must hold `keep_last` checkpoints of this size and so many arrays, and the one being written."""
        self._directory, self._bytes, self._log = directory, checkpoint_bytes, log
        self._files = FILES_PER_ARRAY * arrays
        self._keep_last = keep_last
        self._checked, self._reported = -math.inf, False

    def check(self) -> None:
        """Look at the disk, if the last look was long ago."""
        if time.monotonic() - self._checked < self.EVERY:
            return
        self._checked = time.monotonic()
        missing = max(0, self._keep_last - len(store.step_directories(self._directory)))
        message = disk_alert(self._directory, (1 + missing) * self._bytes, (1 + missing) * self._files)
        if message and not self._reported:
            self._log.write("alert", step=self._log.step, kind="disk", message=message)
        self._reported = message is not None


class Health(NamedTuple):
    """Everything that the loop checks after a step."""

    cache: Cache
    trackers: Sidecars
    data: DataHealth
    disk: DiskSpace
    log: EventLog

    def check(self, step: int) -> None:
        """Log problems. Raises TrainkitError if tokenising in the background has failed."""
        self.cache.check()
        self.data.check()
        self.disk.check()
        for name, problem in self.trackers.poll():
            self.log.write("alert", step=step, kind=name, message=problem)


def start_trackers(directory: Path, track: Track, log: EventLog, afterwards: contextlib.ExitStack) -> Sidecars:
    """Start the trackers' processes, and let `afterwards` wait for them."""
    trackers = Sidecars.start(directory, track) if hosts.is_first() else Sidecars([])

    def finish() -> None:
        for name, problem in trackers.finish(timeout=TRACKER_SECONDS):
            log.write("alert", step=log.step, kind=name, message=problem)

    afterwards.callback(finish)
    return trackers
