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

from trainkit.data.cache.section import SourceSpan
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
    def needed_arrays(self, predictions: Predictions) -> Mapping[str, Array]:
        """Return the arrays (N, …) from which its values follow; called like `statistics`."""

    @abstractmethod
    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the values of a set from the arrays of `needed_arrays`, which hold its items that count, in order; at
        least one."""

    def statistics(self, predictions: Predictions) -> Any:
        return ()


class GatheredItems:
    """The items of a set on the host: in the order in which they arrive from the devices or, if they are tokens whose
    texts matter, in that of their documents."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._places: list[tuple[int, Sequence[Sequence[SourceSpan]]]] = []

    def add(
        self, part: Mapping[str, Mapping[str, Array]], rows: int = 0, places: Sequence[Sequence[SourceSpan]] = ()
    ) -> None:
        """Add what each metric, by its label, needs of a batch of `rows` rows, with its `weights`.

        `places` are where the rows come from, without those of padding; needed if the items have `begins`. The arrays
        are fetched when the next part is added, so that nothing waits for them.
        """
        self._fetch_last()
        self._parts.append(part)
        self._places.append((rows, places))

    def of(self, label: str) -> dict[str, np.ndarray]:
        """Return what a metric needs of the items that count, in order; an empty dictionary without items.

        `begins` then says which items are the first of a document, even if the items are divided between windows.
        """
        self._fetch_last()
        parts = [part[label] for part in self._parts]
        if not any((part["weights"] > 0).any() for part in parts):
            return {}
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order, text = np.arange(len(whole["weights"])), None
        if "begins" in whole and any(places for _, places in self._places):
            order, text = _by_document(self._places, [len(part["weights"]) for part in parts])
        counts = whole.pop("weights")[order] > 0
        found = {name: array[order][counts] for name, array in whole.items()}
        if text is not None:
            found["begins"] = np.diff(text[counts], prepend=-1) > 0
        return found

    def _fetch_last(self) -> None:
        if self._parts:
            self._parts.append(jax.device_get(self._parts.pop()))


def _by_document(
    parts: Sequence[tuple[int, Sequence[Sequence[SourceSpan]]]], sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the items of all parts in the order of their documents, and the number of the text that each is in.

    A text ends with its document, or where the next window of its document is not among the parts.

    Args:
        parts: the rows of each part, and where they come from.
        sizes: the number of items of each part.
    """
    spans, begin = [], 0
    for (rows, places), size in zip(parts, sizes, strict=True):
        for row, documents in enumerate(places):
            at = begin + row * (size // rows)
            for place in documents:
                section = place.section
                document = (section.source, section.unit, section.shard.key, place.file, place.index)
                spans.append((document, place.first, place.end, at))
                at += place.end - place.first
        begin += size
    order, texts = [], []
    number, current, reached = -1, None, 0
    for document, first, end, at in sorted(spans):
        number += document != current or first > reached
        current, reached = document, end
        order.append(np.arange(at, at + end - first))
        texts.append(np.full(end - first, number))
    return np.concatenate(order), np.concatenate(texts)


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
