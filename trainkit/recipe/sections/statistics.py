"""[statistics]: histograms of the parameters."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Spec


class Statistics(Spec):
    """How the parameters are distributed, layer by layer: histograms in the log, and from there in the trackers."""

    every: Count | None = None
    """Steps from one look to the next; none where not given."""
