"""A person's mark on a checkpoint: an empty file in its directory, because of which it is never removed.

It is the one thing that a viewer writes into a run.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME = "keep"


def is_marked(checkpoint: Path) -> bool:
    """Whether the checkpoint in this directory is to be kept."""
    return os.path.lexists(checkpoint / NAME)


def mark(checkpoint: Path, *, keep: bool) -> None:
    """Have it kept, or no longer. Raises OSError; of a checkpoint that is gone, FileNotFoundError."""
    if keep:
        os.close(os.open(checkpoint / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    else:
        os.unlink(checkpoint / NAME)
