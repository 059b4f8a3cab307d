"""`events.mark`: the checksum of a log up to the newest event by which a later attempt decides what it does."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from trainkit import files

#: Beside the log: its checksum up to the newest event by which a later attempt decides what it does.
MARK = "events.mark"
#: Kinds of these events: commands that it repeats, evaluations of which it knows the best, steps that it leaves out.
DECIDING = ("control", "evaluated", "rolled_back", "run_finished")


class LogMark(NamedTuple):
    """The bytes of a log and their checksum, made by an attempt after a step."""

    log: tuple[int, str]
    step: int
    attempt: int


def newest_mark(run_directory: Path) -> LogMark | None:
    """Return the mark that was made with the newest event of `DECIDING`; None if there is none, or it is damaged."""
    try:
        mark = files.read_json(run_directory / MARK)
        return LogMark((int(mark["bytes"]), str(mark["crc32"])), int(mark["step"]), int(mark["attempt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_mark(run_directory: Path, size: int, checksum: int, *, step: int, attempt: int) -> None:
    """Record the checksum of the first `size` bytes of a log beside it.

    It is not flushed: without it, less is compared.
    """
    path, draft = run_directory / MARK, run_directory / f".{MARK}"
    mark = {"bytes": size, "crc32": files.as_digits(checksum), "step": step, "attempt": attempt}
    with contextlib.suppress(OSError):
        draft.write_text(files.seal(json.dumps(mark)))
        draft.replace(path)
