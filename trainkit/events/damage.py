"""How a log differs from what an attempt knew of it."""

from __future__ import annotations

from pathlib import Path

from trainkit import files
from trainkit.events.attempts import CurrentEvents
from trainkit.events.tail import NAME, of_kinds

#: Beside a log that was made small: which log that is, and up to which attempt its checkpoints know another one.
COMPACTED = "compacted.json"


def damage(run_directory: Path, mark: tuple[int, str], *, step: int, attempt: int) -> str | None:
    """Return how the log differs from the `mark` that an attempt made of it at `step`; None if it does not, or differs
    only because it was made small since then."""
    path, (size, expected) = run_directory / NAME, mark
    if path.exists() and files.checksum_of(path, size) == expected:
        return None
    if _is_small_log_of(run_directory, attempt):
        return None
    # twice through the log, which may be larger than the memory
    current, seen = CurrentEvents(of_kinds(run_directory, "run_started")), bytearray(step + 1)
    for event in filter(current.keeps, of_kinds(run_directory, "run_started", "step")):
        if event["type"] == "step" and 0 <= event["step"] <= step:
            seen[event["step"]] = 1
    missing = seen.count(0, 1)
    lost = f"{missing} of the steps up to {step} are missing, the first is {seen.find(0, 1)}" if missing else ""
    lost = lost or "no step is missing, but other events are or values differ"
    return f"{NAME} is not as it was at step {step}: {lost}; training itself needs none of them"


def _is_small_log_of(run_directory: Path, attempt: int) -> bool:
    """Return whether the log begins with the undamaged small log of a run up to this attempt or a later one."""
    try:
        record = files.read_json(run_directory / COMPACTED)
        expected = str(record["crc32"])
        is_later = int(record["attempt"]) >= attempt
        return is_later and files.checksum_of(run_directory / NAME, int(record["bytes"])) == expected
    except (OSError, ValueError, KeyError, TypeError):
        return False
