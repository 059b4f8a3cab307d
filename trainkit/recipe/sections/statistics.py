"""[statistics]: histograms of the parameters."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Spec


class Statistics(Spec):
    """Histograms of the parameters, layer by layer, in the log and the trackers."""

    every: Count | None = None
    """Steps between histograms. If absent, there are none."""
