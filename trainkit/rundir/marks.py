"""Marks on checkpoints: of a person, that one is kept, and of the trainer, which one is the best.

A person's mark is an empty file in the checkpoint's directory, because of which it is never removed; it is the one
thing that a viewer writes into a run. Which checkpoint is the best is in `checkpoints/best.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

NAME = "keep"
#: Beside the checkpoints of a run.
BEST = "best.json"


def is_marked(checkpoint: Path) -> bool:
    """Whether the checkpoint in this directory is to be kept."""
    return os.path.lexists(checkpoint / NAME)


def mark(checkpoint: Path, *, keep: bool) -> None:
    """Have it kept, or no longer. Raises OSError; of a checkpoint that is gone, FileNotFoundError."""
    if keep:
        os.close(os.open(checkpoint / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    else:
        os.unlink(checkpoint / NAME)


class BestMark(NamedTuple):
    """Which checkpoint is the best by `checkpoint.best`, and why."""

    step: int
    metric: str
    value: float


def best(run_directory: Path) -> BestMark | None:
    """Return the mark of a run's best checkpoint; None where it has none that can be read."""
    try:
        found = json.loads((run_directory / "checkpoints" / BEST).read_text(encoding="utf-8"))
        return BestMark(int(found["step"]), str(found["metric"]), float(found["value"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mark_best(run_directory: Path, mark: BestMark | None) -> None:
    """Write the mark of a run's best checkpoint, or remove it. Raises OSError."""
    path = run_directory / "checkpoints" / BEST
    if mark is None:
        path.unlink(missing_ok=True)
        return
    fresh = path.with_name(f".{BEST}")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(mark._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
