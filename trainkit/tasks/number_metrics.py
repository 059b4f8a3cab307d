"""Metrics of predicted numbers, from sums without rounding. N items, W numbers of a label."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.tasks.exact_sums import ExactSum, exact_dot, exact_sum
from trainkit.tasks.metric import Metric, Predictions, count, counted_items


class NumberMetric(Metric):
    """A metric of one number, NaN where a prediction is not finite; or of several, each with a value."""

    def __init__(self, label: str, outputs: tuple[str, ...]) -> None:
        self._label, self._outputs = label, outputs

    @classmethod
    def build(cls, spec: MetricSpec, classes: tuple[str, ...]) -> NumberMetric:
        """Return the metric of a spec; `classes` are the names of the numbers, if there are several."""
        return cls(spec.label, classes)

    zero_of_one: ClassVar[Any]
    """The sums of no items, of one number."""

    @abstractmethod
    def sums(self, p_N: Float[Array, " N"], t_N: Float[Array, " N"], counted_N: Bool[Array, " N"]) -> Any:
        """Return the sums of predictions and targets of one number."""

    @abstractmethod
    def value(self, items: int, sums: list[Fraction]) -> float | None:
        """Return the value from the sums over at least one item; None if undefined."""

    @property
    def zero(self) -> Any:
        several = (max(1, len(self._outputs)),)
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, several + leaf.shape), self.zero_of_one)

    def statistics(self, predictions: Predictions) -> Any:
        """See `Metric.statistics`: each array has a row for each number of a label."""
        counted_N = counted_items(predictions)
        columns = (predictions[name].astype(jnp.float32) for name in ("predicted", "target"))
        p_NW, t_NW = (column.reshape(len(counted_N), -1) for column in columns)
        return jax.vmap(self.sums, in_axes=(1, 1, None))(p_NW, t_NW, counted_N)

    def values(self, sums: Any) -> Mapping[str, float]:
        if not int(sums.items[0]):
            return {}
        each = [self._value(jax.tree.map(lambda leaf, n=n: leaf[n], sums)) for n in range(len(sums.items))]
        return values_of_each(self._label, self._outputs, each)

    def _value(self, sums: Any) -> float | None:
        exact = [one.fraction() for one in sums[1:]]
        finite = [one for one in exact if one is not None]
        return self.value(int(sums.items), finite) if len(finite) == len(exact) else math.nan


def values_of_each(label: str, outputs: tuple[str, ...], each: Sequence[float | None]) -> dict[str, float]:
    """Return the values of the numbers of a label by name, and their mean, without numbers that have no value."""
    known = [value for value in each if value is not None]
    if not known:
        return {}
    named = zip(outputs, each, strict=True) if outputs else ()
    return {label: sum(known) / len(known)} | {f"{label}/{name}": v for name, v in named if v is not None}


class Distances(NamedTuple):
    """The sum of the distances of predictions and targets."""

    items: Any
    distance: ExactSum


class AbsoluteErrorMetric(NumberMetric):
    """See `MeanAbsoluteError`."""

    zero_of_one = Distances(np.int32(0), ExactSum.zero())

    def sums(self, p_N: Float[Array, " N"], t_N: Float[Array, " N"], counted_N: Bool[Array, " N"]) -> Distances:
        return Distances(count(counted_N), exact_sum(jnp.abs(p_N - t_N), counted_N))

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

    zero_of_one = Moments(np.int32(0), *(ExactSum.zero() for _ in range(5)))

    def sums(self, p_N: Float[Array, " N"], t_N: Float[Array, " N"], counted_N: Bool[Array, " N"]) -> Moments:
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
