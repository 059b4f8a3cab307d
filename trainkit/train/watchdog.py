"""A watchdog that shows what a trainer does when it does nothing: the stacks of all its threads."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainkit import files
from trainkit.errors import FAILED
from trainkit.events.log import EventLog
from trainkit.parallel import hosts
from trainkit.printer import complain

#: An attempt reports at most so many stalls.
MOST = 5
#: Seconds in which a stalled run that is to stop can still write to its log.
GRACE = 30.0


class Watchdog:
    """Reports when no step has been completed for a while, in a thread of its own. Once for each stall."""

    def __init__(
        self, seconds: float | None, report: Callable[[float], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`report` is called with the seconds since the last step. There is no thread if `seconds` is None."""
        self._seconds, self._report, self._clock = seconds, report, clock
        self._closed = threading.Event()
        #: When the last step was completed; None while the loop does something else, or a stall is known.
        self._since: float | None = clock()
        self._reports = 0
        self._thread: threading.Thread | None = None
        if seconds is not None:
            self._thread = threading.Thread(target=self._watch, args=(seconds,), name="watchdog", daemon=True)
            self._thread.start()

    def note_step(self) -> None:
        """Say that a step was completed."""
        self._since = self._clock()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Watch nothing during a block, in which the loop does something other than steps."""
        self._since = None
        try:
            yield
        finally:
            self.note_step()

    def look(self) -> None:
        """Report a stall if there is one that is not known yet."""
        since = self._since
        if self._seconds is None or since is None or (waited := self._clock() - since) < self._seconds:
            return
        self._since, self._reports = None, self._reports + 1
        if self._reports <= MOST:
            self._report(waited)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread:
            self._thread.join(timeout=5)

    def _watch(self, seconds: float) -> None:
        while not self._closed.wait(min(seconds / 10, 10.0)):
            self.look()


def report_stall(directory: Path, log: EventLog, waited: float, *, stops: bool = False) -> None:
    """Write the stacks of all threads into a new file of `directory`, and an alert that names it.

    If it `stops`, the process then ends, and after `GRACE` seconds even if the log cannot be written.
    """
    if stops:
        hosts.depart()
        limit = threading.Timer(GRACE, os._exit, (FAILED,))
        limit.daemon = True
        limit.start()
    try:
        directory.mkdir(exist_ok=True)
        process = "" if hosts.is_first() else f"-process-{hosts.number()}"
        own = [each for each in directory.glob(f"stacks-*{process}.txt") if process or "-process" not in each.stem]
        path = directory / f"stacks-{len(own) + 1}{process}.txt"
        with files.replace_file(path) as file:
            faulthandler.dump_traceback(file, all_threads=True)
        where = f"the stacks of all threads are in {directory.name}/{path.name}"
    except OSError as error:
        where = f"the stacks could not be written: {error}"
    message = f"no step was completed for {waited:.0f} s after step {log.step}: {where}"
    log.write("alert", step=log.step, kind="stalled", message=message)
    if stops:
        ended = "no step was completed for guard.stalled_minutes; resume continues from the newest checkpoint"
        log.write("run_finished", step=log.step, status="failed", exit_code=FAILED, message=ended)
        complain(f"error: {message}; the run was stopped")
        hosts.leave(FAILED, seconds=GRACE / 2)  # the others write their stacks meanwhile
        os._exit(FAILED)  # the main thread hangs, so nothing can be unwound
