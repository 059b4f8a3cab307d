"""Metrics of an evaluation: sums of its predictions, and the values that they come to.

The sums of parts of the data add up leaf by leaf to those of the whole. Those of trainkit's own metrics are integers,
so that they are the same in whatever order the parts come and on however many devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
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
