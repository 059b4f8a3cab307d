"""Runs that differ in their seed only: the mean and spread of a metric, and whether a difference is more than noise.

Means are compared by Welch's t-test (Welch 1947), which does not assume that both groups spread alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainkit.events.attempts import current_events
from trainkit.events.tail import number, of_kinds
from trainkit.rundir.recipes import differing_keys

#: The key in which the runs of a group differ, and the probability at which a difference is called more than noise.
SEED, LEVEL = "run.seed", 0.05
#: Keys that do not change what a run computes.
PLACES = frozenset({"run.directory"})
LOSS = "train/loss"


class SeedGroup(NamedTuple):
    """Runs with the same recipe but for the seed: their places in the list of runs, and the values of a metric."""

    places: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean of the values; nan without values."""
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Return the standard deviation (of a sample) of the values; nan with fewer than two."""
        if len(self.values) < 2:
            return math.nan
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / (len(self.values) - 1))

    @property
    def band(self) -> float:
        """Return half the width of the interval that holds the mean with a probability of 95 %."""
        if len(self.values) < 2:
            return math.nan
        return quantile(len(self.values) - 1) * self.deviation / math.sqrt(len(self.values))


class Welch(NamedTuple):
    """Welch's t-test of two groups: t, the degrees of freedom, and the probability of so large a t by chance alone."""

    t: float
    freedom: float
    probability: float


def final_value(run: Path, metric: str) -> float:
    """Return a metric at the end of a run, nan if it was never computed; of the training loss, which is noisy, the mean
    of the last tenth of the steps."""
    kind = "evaluated" if metric.startswith("validation/") else "step"
    events = current_events(list(of_kinds(run, "run_started", kind)))
    found = [number(e["metrics"][metric]) for e in events if e["type"] == kind and metric in e["metrics"]]
    last = found[-max(1, len(found) // 10 if metric == LOSS else 1) :]
    return math.fsum(last) / len(last) if last else math.nan


def groups_of(recipes: Sequence[Mapping[str, str]], values: Sequence[float]) -> list[SeedGroup]:
    """Return the runs in groups of equal recipes, the seed aside, in the order of their first run.

    A run with the seed of an earlier one of its group repeats that run, and is left out.

    Args:
        recipes: of each run, its values by dotted key.
        values: of each run, the metric at its end; not finite where it has none.
    """
    groups: list[list[int]] = []
    for place, recipe in enumerate(recipes):
        for group in groups:
            differ = set(differing_keys([recipes[group[0]], recipe])) - PLACES
            if differ <= {SEED}:
                if all(recipes[known].get(SEED) != recipe.get(SEED) for known in group):
                    group.append(place)
                break
        else:
            groups.append([place])
    return [
        SeedGroup(tuple(group), tuple(values[place] for place in group if math.isfinite(values[place])))
        for group in groups
    ]


def welch(first: SeedGroup, second: SeedGroup) -> Welch | None:
    """Return the test of two groups; None where one has fewer than two values, or neither spreads at all."""
    if min(len(first.values), len(second.values)) < 2:
        return None
    parts = [group.deviation**2 / len(group.values) for group in (first, second)]
    if not (total := math.fsum(parts)):
        return None
    t = (first.mean - second.mean) / math.sqrt(total)
    each = (part**2 / (len(group.values) - 1) for part, group in zip(parts, (first, second), strict=True))
    freedom = total**2 / math.fsum(each)
    return Welch(t, freedom, probability(t, freedom))


def probability(t: float, freedom: float) -> float:
    """Return the probability that |t| of Student's distribution is at least this large."""
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the t that is exceeded in size with a probability of `level`."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle, freedom) > level else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    fraction = 1.0
    for n in range(200, 0, -1):  # from the inside out: it converges in some tens of terms
        m, odd = divmod(n, 2)
        if odd:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + term / fraction
    return scale / (a * fraction)
