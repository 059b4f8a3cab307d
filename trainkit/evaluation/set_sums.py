"""What the values of an evaluation follow from: the sums over a set, which add up to those of several sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import numpy as np

from trainkit.tasks import Loss, Task
from trainkit.tasks.metric import GatheredMetric, Metric


class Sums(NamedTuple):
    """The sums over a set."""

    loss: Loss
    metrics: Mapping[str, Any]
    """Those of the recipe's metrics, by label."""


class SetSums(NamedTuple):
    """The sums over a set or several sets, on the host, and what else their values follow from."""

    sums: Sums
    items: Mapping[str, Mapping[str, np.ndarray]]
    """The arrays of each gathered metric, by label; without any where no item counts."""
    targets: int
    """How many tokens may be targets; 0 if unknown."""
    bytes: int
    """The bytes of the documents; 0 if unknown."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing counts, so that there are no values."""
        return not float(self.sums.loss.weight)

    def values(self, task: Task, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Return what the task reports and the values of metrics, by the last part of the metric's name."""
        if self.is_empty:
            return {}
        loss = self.sums.loss
        mean = float(loss.sum) / float(loss.weight)
        report = task.report(loss=mean, metrics=loss.metrics, targets=self.targets, bytes=self.bytes)
        for label, metric in metrics.items():
            report |= metric.values(self.items[label] if label in self.items else self.sums.metrics[label])
        return report


def labels_of_gathered(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the labels of the metrics that need all items together."""
    return [label for label, metric in metrics.items() if isinstance(metric, GatheredMetric)]


def add_up(sets: Sequence[SetSums]) -> SetSums:
    """Return the sums over several sets, at least one, as if they were one set."""
    counted = [each for each in sets if not each.is_empty] or sets[:1]
    return SetSums(
        jax.tree.map(lambda *parts: reduce(add, parts), *(each.sums for each in counted)),
        {
            label: {name: np.concatenate([each.items[label][name] for each in counted]) for name in arrays}
            for label, arrays in counted[0].items.items()
        },
        sum(each.targets for each in counted) if all(each.targets for each in counted) else 0,
        sum(each.bytes for each in counted) if all(each.bytes for each in counted) else 0,
    )
