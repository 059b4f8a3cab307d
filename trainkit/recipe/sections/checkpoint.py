"""[checkpoint]: when the run is saved, and how much of that is kept."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Positive, Spec


class Checkpoint(Spec):
    """A final checkpoint is written whatever is said here."""

    every_minutes: Positive | None = 10.0
    """Rolling: of these only the newest `keep_last` stay."""
    keep_last: Count = 2
    """Rolling checkpoints that stay. With 1 a single flipped bit on the disk can cost all of the run."""
    keep_every: Count | tuple[Count, ...] | None = None
    """Permanent: every so many steps, or at the listed steps."""
