"""Whether a process that a log speaks of still lives: its id may have been given to another since."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

#: Seconds by which two readings of one process's start may differ: the boot time is itself derived from the clock.
TOLERANCE = 2.0


def process_started(pid: int) -> float | None:
    """When a process started, in Unix seconds; None where there is no such process or no /proc to tell."""
    fields = _stat(pid)
    booted = _boot_time()
    if fields is None or booted is None:
        return None
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def process_alive(pid: int, started: float | None) -> bool:
    """Whether the process `pid` that started at `started` runs; where that cannot be told, whether any `pid` does."""
    if not 0 < pid < 1 << 31:  # to kill(2), others are groups or nothing
        return False
    fields = _stat(pid)
    if fields is not None and fields[0] in ("Z", "X"):
        return False
    now = process_started(pid)
    if now is not None and started is not None and abs(now - started) > TOLERANCE:
        _boot_time.cache_clear()  # the clock may have been put right since
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
    """The process of this host that has taken the run's lock and lives; None where there is none."""
    lock = run_directory / "lock"
    try:
        pid, taken = int(lock.read_text()), lock.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not process_alive(pid, None):
        return None
    started = process_started(pid)
    # a process that began later was given the id of the one that wrote it
    return pid if started is None or started <= taken + TOLERANCE else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: what is before it, the name, may itself hold blanks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


@cache
def _boot_time() -> int | None:
    """Unix seconds. Asked for once, as the file is long where there are many processors."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("btime ")), None)
