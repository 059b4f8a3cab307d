"""The attempts of a run: which events of a log count after a resume, and whether an attempt's process still runs.

An attempt that resumes from step N does again what earlier attempts did beyond N. Their events beyond N no longer
count, except messages. Every reader of a log takes this rule from here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

from trainkit.events.schema import Event

#: Kinds of events that count whatever later attempts do again: the start of an attempt, and messages.
MESSAGES = frozenset({"run_started", "alert", "log", "rolled_back"})
#: Seconds by which two readings of a process's start may differ: the boot time is itself derived from the clock.
TOLERANCE = 2.0


def resumed_step(event: Event) -> int:
    """Return the step from which the attempt of this `run_started` event continues; 0 for the first step."""
    return event["resumed_from"] or 0


def kept_until(event: Event) -> int | None:
    """Return the last step whose earlier events count after this event; None where all of them still do.

    It is -1 where an attempt starts from the beginning: even the results of step 0, before any training, come again.
    """
    if event["type"] != "run_started":
        return None
    return -1 if event["resumed_from"] is None else event["resumed_from"]


class CurrentEvents:
    """Decides for each event of a log, in order, whether it counts after all the attempts in `events`.

    It remembers one number for each attempt, so that a log of any length can be read a second time and filtered.
    """

    def __init__(self, events: Iterable[Event], *, always: Collection[str] = MESSAGES) -> None:
        """`always` lists the kinds of events that count whatever later attempts do again."""
        cuts = [cut for cut in map(kept_until, events) if cut is not None]
        #: For each attempt that is still to come, the last first: the last step that it and those after it keep.
        self._kept = list(accumulate(reversed(cuts), min))
        self._always = always

    def keeps(self, event: Event) -> bool:
        """Return whether the next event counts. Events after those given at the start all do."""
        if event["type"] == "run_started" and self._kept:
            self._kept.pop()
        return not self._kept or event["type"] in self._always or bool(event["step"] <= self._kept[-1])


def current_events(events: Sequence[Event]) -> list[Event]:
    """Return the events that count after all the attempts among them."""
    current = CurrentEvents(events)
    return [event for event in events if current.keeps(event)]


def process_started(pid: int) -> float | None:
    """Return when a process started, in Unix seconds; None without such a process or without /proc."""
    fields = _stat(pid)
    booted = _boot_time()
    if fields is None or booted is None:
        return None
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process_alive(pid: int, started: float | None) -> bool:
    """Return whether the process `pid` that started at `started` runs; without /proc, whether any process `pid` does.

    Another process may have been given the same id since.
    """
    if not 0 < pid < 1 << 31:  # kill(2) takes other numbers for groups
        return False
    fields = _stat(pid)
    if fields is not None and fields[0] in ("Z", "X"):
        return False
    now = process_started(pid)
    if now is not None and started is not None and abs(now - started) > TOLERANCE:
        _boot_time.cache_clear()  # the clock may have been corrected since
        now = process_started(pid)
    if now is not None:
        return started is None or abs(now - started) <= TOLERANCE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def lock_holder(run_directory: Path) -> int | None:
    """Return the id of the living process of this host that holds the run's lock; None where there is none."""
    lock = run_directory / "lock"
    try:
        pid, taken = int(lock.read_text()), lock.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not process_alive(pid, None):
        return None
    started = process_started(pid)
    # a process that started later was given the id of the one that wrote it
    return pid if started is None or started <= taken + TOLERANCE else None


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on: the name before it may contain spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


@cache
def _boot_time() -> int | None:
    """Return the time of boot in Unix seconds. Read once: the file is long on machines with many processors."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("btime ")), None)
