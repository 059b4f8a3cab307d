"""Metrics of an evaluation: sums over its predictions, and the values that follow from them.

The sums of parts of the data add up leaf by leaf to those of the whole. Those of trainkit's own metrics are integers,
so that they do not depend on the order of the parts or the number of devices.
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
    """What an evaluation computes from the predictions of a task."""

    @property
    @abstractmethod
    def zero(self) -> Any:
        """Return the sums of no items: a pytree of numpy arrays."""

    @abstractmethod
    def statistics(self, predictions: Predictions) -> Any:
        """Return the sums of a batch, a pytree like `zero`; called with jax arrays, inside `jit`.

        Items of padding have the weight 0, and their predictions are arbitrary.
        """

    @abstractmethod
    def values(self, sums: Any) -> Mapping[str, float]:
        """Return the values of a set from its sums, on the host, by full name: those of its spec's `names`, without
        undefined ones."""


class GatheredMetric(Metric):
    """A metric that follows from all items together, such as from their ranks. The items are gathered on the host."""

    zero = ()

    @abstractmethod
    def needed(self, predictions: Predictions) -> Mapping[str, Array]:
        """Return the arrays (N, …) from which its values follow; called like `statistics`."""

    @abstractmethod
    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the values of a set from the arrays of `needed`, which hold its items that count, in order; at least
        one."""

    def statistics(self, predictions: Predictions) -> Any:
        return ()


class GatheredItems:
    """The items of a set on the host, in the order in which they arrive from the devices."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, part: Mapping[str, Mapping[str, Array]]) -> None:
        """Add what each metric, by its label, needs of a batch, with its `weights`.

        The arrays are fetched when the next part is added, so that nothing waits for them.
        """
        self._fetch_last()
        self._parts.append(part)

    def of(self, label: str) -> dict[str, np.ndarray]:
        """Return what a metric needs of the items that count, in order; an empty dictionary without items."""
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
    """Return the metrics of a recipe by label, except those of generated texts (`text_metrics.py`).

    Args:
        classes: the names of the task's classes.
    """
    predicted = [spec for spec in specs if not isinstance(spec, TextMetricSpec)]
    return {spec.label: implementation_of(spec).build(spec, classes) for spec in predicted}


def count(items: Array) -> Array:
    """Return how many of the items (N, …) are true, exactly, as an int32 scalar: a float32 stops counting at 2^24."""
    return jnp.sum(items, dtype=jnp.int32)
