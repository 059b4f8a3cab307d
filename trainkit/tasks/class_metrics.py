"""Metrics of predicted classes, all from counts. N items, C classes.

The counts are int32: an evaluation has fewer than 2^31 items. Values are those of scikit-learn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from trainkit.recipe.sections.metric import Accuracy, ClassAverage, ConfusionMatrix, Mcc
from trainkit.tasks.metric import Metric, Predictions, count, counted_items


class ClassCounts(NamedTuple):
    """How often each class was seen; int32 (C,) each."""

    correct: Any
    """As label and prediction of one item."""
    predicted: Any
    label: Any

    @staticmethod
    def zero(classes: int) -> ClassCounts:
        return ClassCounts(*(np.zeros(classes, np.int32) for _ in range(3)))

    @staticmethod
    def of(predictions: Predictions, classes: int) -> ClassCounts:
        label_N, predicted_N = predictions["label"], predictions["predicted"]
        counted_N = counted_items(predictions)
        correct_N = counted_N & (label_N == predicted_N)
        return ClassCounts(
            _occurrences(label_N, correct_N, classes),
            _occurrences(predicted_N, counted_N, classes),
            _occurrences(label_N, counted_N, classes),
        )


def _occurrences(of_N: Array, counted_N: Array, size: int) -> Int[Array, " size"]:
    return jnp.zeros(size, jnp.int32).at[of_N].add(counted_N.astype(jnp.int32))


class AccuracyMetric(Metric):
    """See `Accuracy`: int32 (2,), how many are correct and how many there are."""

    zero = np.zeros(2, np.int32)

    def __init__(self, label: str) -> None:
        self._label = label

    @classmethod
    def build(cls, spec: Accuracy, classes: tuple[str, ...]) -> AccuracyMetric:
        return cls(spec.label)

    def statistics(self, predictions: Predictions) -> Array:
        counted_N = counted_items(predictions)
        correct_N = counted_N & (predictions["label"] == predictions["predicted"])
        return jnp.stack([count(correct_N), count(counted_N)])

    def values(self, sums: Any) -> Mapping[str, float]:
        correct, all_of_them = map(int, sums)
        return {self._label: correct / all_of_them} if all_of_them else {}


@dataclass(frozen=True)
class AveragedMetric(Metric):
    """See `ClassAverage`: a number for each class, and an average of them."""

    spec: ClassAverage
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: ClassAverage, classes: tuple[str, ...]) -> AveragedMetric:
        return cls(spec, classes)

    @property
    def zero(self) -> ClassCounts:
        return ClassCounts.zero(len(self.classes))

    def statistics(self, predictions: Predictions) -> ClassCounts:
        return ClassCounts.of(predictions, len(self.classes))

    @staticmethod
    @abstractmethod
    def score(counts: ClassCounts) -> Any:
        """Return the number of each class, whose counts are float64; 0 where it is 0 / 0."""

    def values(self, sums: ClassCounts) -> Mapping[str, float]:
        counts = ClassCounts(*(np.asarray(array, np.float64) for array in sums))
        if not counts.label.sum():
            return {}
        scores_C = self.score(counts)
        found = {self.spec.label: self._average(counts, scores_C)}
        if self.spec.per_class:
            named = zip(self.classes, scores_C.tolist(), strict=True)
            found |= {f"{self.spec.label}/{name}": score for name, score in named}
        return found

    def _average(self, counts: ClassCounts, scores_C: np.ndarray) -> float:
        match self.spec.average:
            case "micro":
                return float(self.score(ClassCounts(*(array.sum() for array in counts))))
            case "weighted":
                return float(np.average(scores_C, weights=counts.label))
            case "binary":
                return float(scores_C[1])
            case "macro":
                return float(scores_C[counts.label + counts.predicted > 0].mean())


class PrecisionMetric(AveragedMetric):
    """See `PrecisionScore`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return counts.correct / np.maximum(counts.predicted, 1)


class RecallMetric(AveragedMetric):
    """See `RecallScore`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return counts.correct / np.maximum(counts.label, 1)


class F1Metric(AveragedMetric):
    """See `F1Score`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return 2 * counts.correct / np.maximum(counts.predicted + counts.label, 1)


@dataclass(frozen=True)
class MccMetric(Metric):
    """See `Mcc`; 0 where all labels, or all predictions, are of one class (Gorodkin 2004, equation 8)."""

    label: str
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: Mcc, classes: tuple[str, ...]) -> MccMetric:
        return cls(spec.label, classes)

    @property
    def zero(self) -> ClassCounts:
        return ClassCounts.zero(len(self.classes))

    def statistics(self, predictions: Predictions) -> ClassCounts:
        return ClassCounts.of(predictions, len(self.classes))

    def values(self, sums: ClassCounts) -> Mapping[str, float]:
        correct, predicted, label = ([int(number) for number in array] for array in sums)
        items = sum(label)
        if not items:
            return {}
        covariance = items * sum(correct) - sum(p * t for p, t in zip(predicted, label, strict=True))
        spread = (items**2 - sum(p * p for p in predicted)) * (items**2 - sum(t * t for t in label))
        return {self.label: covariance / math.sqrt(spread) if spread else 0.0}


@dataclass(frozen=True)
class ConfusionMetric(Metric):
    """See `ConfusionMatrix`: int32 (C, C), a row for each label."""

    label: str
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: ConfusionMatrix, classes: tuple[str, ...]) -> ConfusionMetric:
        return cls(spec.label, classes)

    @property
    def zero(self) -> np.ndarray:
        return np.zeros((len(self.classes), len(self.classes)), np.int32)

    def statistics(self, predictions: Predictions) -> Array:
        cells = jnp.zeros(self.zero.shape, jnp.int32)
        return cells.at[predictions["label"], predictions["predicted"]].add(
            counted_items(predictions).astype(jnp.int32)
        )

    def values(self, sums: Any) -> Mapping[str, float]:
        if not np.sum(sums):
            return {}
        return {
            f"{self.label}/{label}/{predicted}": float(cell)
            for label, row in zip(self.classes, np.asarray(sums), strict=True)
            for predicted, cell in zip(self.classes, row, strict=True)
        }
