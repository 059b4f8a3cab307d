"""[checkpoint]: when the run is saved, and how much of that is kept."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Positive, Spec


class Checkpoint(Spec):
    """When checkpoints are saved and how many are kept. The end of a run and a stop always save one."""

    every_minutes: Positive | None = 10.0
    """Minutes between rolling checkpoints; only the newest `keep_last` of them are kept."""
    keep_last: Count = 2
    """How many rolling checkpoints to keep. With 1, a single bad block on the disk can lose the whole run."""
    keep_every: Count | tuple[Count, ...] | None = None
    """Steps between permanent checkpoints, or a list of steps to save them at. If absent, no rolling checkpoint becomes
    permanent."""
