"""Metrics of predicted numbers, from sums without rounding. N items."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.tasks.exact_sums import ExactSum, exact_dot, exact_sum
from trainkit.tasks.metric import Metric, Predictions, count, counted_items


class NumberMetric(Metric):
    """A metric with one value, NaN where a prediction is not finite."""

    def __init__(self, label: str) -> None:
        self._label = label

    @classmethod
    def build(cls, spec: MetricSpec, classes: tuple[str, ...]) -> NumberMetric:
        return cls(spec.label)

    @abstractmethod
    def value(self, items: int, sums: list[Fraction]) -> float | None:
        """Return the value of a number of items above 0, from their sums; None where it has none."""

    def values(self, sums: Any) -> Mapping[str, float]:
        items, exact = int(sums.items), [one.fraction() for one in sums[1:]]
        if not items:
            return {}
        finite = [one for one in exact if one is not None]
        found = self.value(items, finite) if len(finite) == len(exact) else math.nan
        return {} if found is None else {self._label: found}


class Distances(NamedTuple):
    """The sum of the distances of predictions and targets."""

    items: Any
    distance: ExactSum


class AbsoluteErrorMetric(NumberMetric):
    """See `MeanAbsoluteError`."""

    zero = Distances(np.int32(0), ExactSum.zero())

    def statistics(self, predictions: Predictions) -> Distances:
        counted_N = counted_items(predictions)
        distance_N = jnp.abs(predictions["predicted"] - predictions["target"])
        return Distances(count(counted_N), exact_sum(distance_N, counted_N))

    def value(self, items: int, sums: list[Fraction]) -> float:
        return float(sums[0] / items)


class Moments(NamedTuple):
    """Sums of predictions p and targets t, and of their products."""

    items: Any
    p: ExactSum
    t: ExactSum
    pp: ExactSum
    tt: ExactSum
    pt: ExactSum


class MomentMetric(NumberMetric):
    """A metric that follows from the moments of predictions and targets."""

    zero = Moments(np.int32(0), *(ExactSum.zero() for _ in range(5)))

    def statistics(self, predictions: Predictions) -> Moments:
        counted_N = counted_items(predictions)
        p_N: Array = predictions["predicted"].astype(jnp.float32)
        t_N: Array = predictions["target"].astype(jnp.float32)
        products = [exact_dot(x_N, y_N, counted_N) for x_N, y_N in ((p_N, p_N), (t_N, t_N), (p_N, t_N))]
        return Moments(count(counted_N), exact_sum(p_N, counted_N), exact_sum(t_N, counted_N), *products)


class SquaredErrorMetric(MomentMetric):
    """See `MeanSquaredError`."""

    def value(self, items: int, sums: list[Fraction]) -> float:
        _, _, pp, tt, pt = sums
        return float((pp - 2 * pt + tt) / items)


class RSquaredMetric(MomentMetric):
    """See `RSquared`."""

    def value(self, items: int, sums: list[Fraction]) -> float | None:
        _, t, pp, tt, pt = sums
        total = tt - t * t / items
        return float(1 - (pp - 2 * pt + tt) / total) if total else None


class PearsonMetric(MomentMetric):
    """See `Pearson`."""

    def value(self, items: int, sums: list[Fraction]) -> float | None:
        p, t, pp, tt, pt = sums
        covariance, spread = pt - p * t / items, (pp - p * p / items) * (tt - t * t / items)
        if not spread:
            return None
        return math.copysign(math.sqrt(covariance * covariance / spread), covariance)
