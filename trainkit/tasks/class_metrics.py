"""Metrics of predicted classes, and of sets of them, all from counts. N items, C classes.

The counts are int32: an evaluation has fewer than 2^31 items. Values are those of scikit-learn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from trainkit.recipe.sections.metric import ClassAverage, ConfusionMatrix, Mcc, TopKAccuracy
from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.tasks.exact_sums import ExactSum, exact_sum
from trainkit.tasks.metric import Metric, Predictions, count, counted_items


class ClassCounts(NamedTuple):
    """How often each class was seen: int32 arrays (C,)."""

    correct: Any
    """As label and prediction of one item."""
    predicted: Any
    label: Any
    averaged: Any
    """A macro average includes the classes where this is not 0."""

    @staticmethod
    def zero(classes: int) -> ClassCounts:
        """Return the counts of no items."""
        return ClassCounts(*(np.zeros(classes, np.int32) for _ in range(4)))

    @staticmethod
    def of(predictions: Predictions, classes: int) -> ClassCounts:
        """Return the counts of a batch of predictions, each (C,) for C classes."""
        if "labels" in predictions:
            return set_counts(predictions, axis=0)
        label_N, predicted_N = predictions["label"], predictions["predicted"]
        counted_N = counted_items(predictions)
        correct_N = counted_N & (label_N == predicted_N)
        predicted_C = _occurrences(predicted_N, counted_N, classes)
        label_C = _occurrences(label_N, counted_N, classes)
        return ClassCounts(_occurrences(label_N, correct_N, classes), predicted_C, label_C, label_C + predicted_C)


def set_counts(predictions: Predictions, *, axis: int) -> ClassCounts:
    """Return the counts of sets of classes: of each class with `axis` 0, of each item with 1."""
    counted_N1 = counted_items(predictions)[:, None]
    label_NC, predicted_NC = (counted_N1 & (predictions[name] > 0) for name in ("labels", "predicted_labels"))
    arrays = (label_NC & predicted_NC, predicted_NC, label_NC, jnp.broadcast_to(counted_N1, label_NC.shape))
    return ClassCounts(*(array.sum(axis, dtype=jnp.int32) for array in arrays))


def _occurrences(of_N: Array, counted_N: Array, size: int) -> Int[Array, " size"]:
    return jnp.zeros(size, jnp.int32).at[of_N].add(counted_N.astype(jnp.int32))


def _ratio(part: Any, whole: Any) -> Any:
    """Return part / whole, and 0 for 0 / 0; of arrays of numpy or jax."""
    return part / (whole + (whole == 0))


class ShareMetric(Metric):
    """The share of decisions that have a property: int32 (2,), the number that have it and the number of decisions."""

    zero = np.zeros(2, np.int32)

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec

    @classmethod
    def build(cls, spec: MetricSpec, classes: tuple[str, ...]) -> ShareMetric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        return cls(spec)

    @abstractmethod
    def has_property(self, predictions: Predictions) -> Array:
        """Return which decisions have the property, bool (N, …); those of padding are removed afterwards."""

    def statistics(self, predictions: Predictions) -> Array:
        found, counted_N = self.has_property(predictions), counted_items(predictions)
        counted = jnp.broadcast_to(counted_N.reshape(-1, *(1,) * (found.ndim - 1)), found.shape)
        return jnp.stack([count(found & counted), count(counted)])

    def values(self, sums: Any) -> Mapping[str, float]:
        found, all_of_them = map(int, sums)
        return {self.spec.label: found / all_of_them} if all_of_them else {}


class AccuracyMetric(ShareMetric):
    """See `Accuracy`."""

    def has_property(self, predictions: Predictions) -> Array:
        return predictions["label"] == predictions["predicted"]


class TopKMetric(ShareMetric):
    """See `TopKAccuracy`."""

    spec: TopKAccuracy

    def has_property(self, predictions: Predictions) -> Array:
        scores_NC, label_N1 = predictions["scores"], jnp.maximum(predictions["label"], 0)[:, None]
        own_N1 = jnp.take_along_axis(scores_NC, label_N1, axis=1)
        before_NC = (scores_NC == own_N1) & (jnp.arange(scores_NC.shape[1]) < label_N1)
        return (((scores_NC > own_N1) | before_NC).sum(1) < self.spec.k) & ~jnp.isnan(own_N1[:, 0])


class SubsetAccuracyMetric(ShareMetric):
    """See `SubsetAccuracy`."""

    def has_property(self, predictions: Predictions) -> Array:
        return (predictions["labels"] == predictions["predicted_labels"]).all(-1)


class HammingMetric(ShareMetric):
    """See `HammingLoss`."""

    def has_property(self, predictions: Predictions) -> Array:
        return predictions["labels"] != predictions["predicted_labels"]


@dataclass(frozen=True)
class AveragedMetric(Metric):
    """See `ClassAverage`: a value for each class, and their average."""

    spec: ClassAverage
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: ClassAverage, classes: tuple[str, ...]) -> Metric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        if spec.average == "samples":
            return SampledMetric(spec.label, cls.score)
        return cls(spec, classes)

    @property
    def zero(self) -> ClassCounts:
        return ClassCounts.zero(len(self.classes))

    def statistics(self, predictions: Predictions) -> ClassCounts:
        return ClassCounts.of(predictions, len(self.classes))

    @staticmethod
    @abstractmethod
    def score(counts: ClassCounts) -> Any:
        """Return the value of each class from its float64 counts; 0 for 0 / 0."""

    def values(self, sums: ClassCounts) -> Mapping[str, float]:
        counts = ClassCounts(*(np.asarray(array, np.float64) for array in sums))
        if not counts.averaged.sum():
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
                return float((scores_C * counts.label).sum() / max(1, counts.label.sum()))
            case "binary":
                return float(scores_C[1])
            case "macro":
                return float(scores_C[counts.averaged > 0].mean())
        raise AssertionError(self.spec.average)


@dataclass(frozen=True)
class SampledMetric(Metric):
    """The mean of a value of each item with sets of classes: the exact sum of float32 numbers, and the
    number of items."""

    label: str
    score: Callable[[ClassCounts], Any]

    zero = (ExactSum.zero(), np.int32(0))

    def statistics(self, predictions: Predictions) -> Any:
        counted_N = counted_items(predictions)
        return exact_sum(self.score(set_counts(predictions, axis=1)), counted_N), count(counted_N)

    def values(self, sums: Any) -> Mapping[str, float]:
        total, items = sums
        exact = total.fraction()
        return {self.label: float(exact / int(items))} if exact is not None and int(items) else {}


class PrecisionMetric(AveragedMetric):
    """See `PrecisionScore`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return _ratio(counts.correct, counts.predicted)


class RecallMetric(AveragedMetric):
    """See `RecallScore`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return _ratio(counts.correct, counts.label)


class F1Metric(AveragedMetric):
    """See `F1Score`."""

    @staticmethod
    def score(counts: ClassCounts) -> Any:
        return _ratio(2 * counts.correct, counts.predicted + counts.label)


@dataclass(frozen=True)
class MccMetric(Metric):
    """See `Mcc`; 0 where all labels, or all predictions, are of one class (Gorodkin 2004, equation 8)."""

    label: str
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: Mcc, classes: tuple[str, ...]) -> MccMetric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        return cls(spec.label, classes)

    @property
    def zero(self) -> ClassCounts:
        return ClassCounts.zero(len(self.classes))

    def statistics(self, predictions: Predictions) -> ClassCounts:
        return ClassCounts.of(predictions, len(self.classes))

    def values(self, sums: ClassCounts) -> Mapping[str, float]:
        correct, predicted, label = ([int(number) for number in array] for array in sums[:3])
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
        """Return the metric of a spec; `classes` are the names of the classes."""
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
