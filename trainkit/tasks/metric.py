"""Metrics of an evaluation: sums of its predictions, and the values that they come to.

The sums of parts of the data add up leaf by leaf to those of the whole. Those of trainkit's own metrics are integers,
so that they are the same in whatever order the parts come and on however many devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.sections.text_metric import TextMetricSpec
from trainkit.recipe.spec import implementation_of

Predictions = Mapping[str, Array]
"""Arrays (N, …) of the items of a batch, such as examples or tokens; see `Task.predict`."""


class Metric(ABC):
    """What an evaluation computes of the predictions of a task."""

    @property
    @abstractmethod
    def zero(self) -> Any:
        """The sums of no items: a pytree of numpy arrays."""

    @abstractmethod
    def statistics(self, predictions: Predictions) -> Any:
        """Return the sums of a batch, a pytree like `zero`; called with jax arrays, inside `jit`.

        Items of padding have the weight 0, whatever else is predicted of them.
        """

    @abstractmethod
    def values(self, sums: Any) -> Mapping[str, float]:
        """Return the values that the sums of a set come to, on the host, by their full names: those that its spec's
        `names` gives, or fewer where some are not defined."""


class GatheredMetric(Metric):
    """A metric that follows from all items together, such as their ranks. They are gathered on the host."""

    zero = ()

    @abstractmethod
    def needed(self, predictions: Predictions) -> Mapping[str, Array]:
        """Return the arrays (N, …) that its values follow from; called as `statistics` is."""

    @abstractmethod
    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the values of a set from its items, in their order, that count: the arrays of `needed`; it is called
        with at least one item."""

    def statistics(self, predictions: Predictions) -> Any:
        return ()


class GatheredItems:
    """The items of a set on the host, as they come from the devices."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, part: Mapping[str, Mapping[str, Array]]) -> None:
        """Add what each metric needs of a batch, with its `weights`, by label. It is fetched when the next part comes,
        so that nothing waits for it."""
        self._fetch_last()
        self._parts.append(part)

    def of(self, label: str) -> dict[str, np.ndarray]:
        """Return what a metric needs of the items that count, in their order; nothing where there are none."""
        self._fetch_last()
        parts = [part[label] for part in self._parts]
        kept = [part["weights"] > 0 for part in parts]
        if not any(which.any() for which in kept):
            return {}
        names = parts[0].keys() - {"weights"}
        return {
            name: np.concatenate([part[name][which] for part, which in zip(parts, kept, strict=True)]) for name in names
        }

    def _fetch_last(self) -> None:
        if self._parts:
            self._parts.append(jax.device_get(self._parts.pop()))


def counted_items(predictions: Predictions) -> Bool[Array, " N"]:
    """Return which items count: those with a weight above 0. In trainkit's own metrics each of them counts once."""
    return predictions["weights"] > 0


def build_metrics(specs: Sequence[MetricSpec], classes: tuple[str, ...]) -> dict[str, Metric]:
    """Return the metrics of a recipe by label; `classes` are the names of its task's classes. Those of generated texts
    are in `text_metrics.py`."""
    predicted = [spec for spec in specs if not isinstance(spec, TextMetricSpec)]
    return {spec.label: implementation_of(spec).build(spec, classes) for spec in predicted}


def count(items: Array) -> Array:
    """Return how many of the items are true, exactly, as int32: a float32 stops counting at 2^24."""
    return jnp.sum(items, dtype=jnp.int32)
