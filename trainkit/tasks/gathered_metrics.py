"""Metrics of all items together, in float64 on the host. N items, C classes, W numbers of a label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array

from trainkit.recipe.sections.metric import Auroc, SpanF1, Spearman, types_of
from trainkit.tasks.metric import GatheredMetric, Predictions
from trainkit.tasks.number_metrics import values_of_each


@dataclass(frozen=True)
class SpearmanMetric(GatheredMetric):
    """See `Spearman`."""

    spec: Spearman
    outputs: tuple[str, ...]

    @classmethod
    def build(cls, spec: Spearman, classes: tuple[str, ...]) -> SpearmanMetric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        return cls(spec, classes)

    def needed_arrays(self, predictions: Predictions) -> Mapping[str, Array]:
        return {name: predictions[name] for name in ("target", "predicted")}

    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        if not sums:
            return {}
        target_NW, predicted_NW = (sums[name].reshape(len(sums[name]), -1) for name in ("target", "predicted"))
        each = [_rank_correlation(t_N, p_N) for t_N, p_N in zip(target_NW.T, predicted_NW.T, strict=True)]
        return values_of_each(self.spec.label, self.outputs, each)


def _rank_correlation(one_N: np.ndarray, other_N: np.ndarray) -> float | None:
    if np.isnan(one_N).any() or np.isnan(other_N).any():
        return math.nan
    one_N, other_N = (ranks - ranks.mean() for ranks in (mean_ranks(one_N), mean_ranks(other_N)))
    spread = float((one_N @ one_N) * (other_N @ other_N))
    return float(one_N @ other_N) / math.sqrt(spread) if spread else None


def mean_ranks(values_N: np.ndarray) -> np.ndarray:
    """Return the rank of each value among all, from 1; equal values share the mean of their ranks. float64 (N,)."""
    _, which_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[which_N])


@dataclass(frozen=True)
class AurocMetric(GatheredMetric):
    """See `Auroc`."""

    spec: Auroc
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: Auroc, classes: tuple[str, ...]) -> AurocMetric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        return cls(spec, classes)

    def needed_arrays(self, predictions: Predictions) -> Mapping[str, Array]:
        return {name: predictions[name] for name in ("label", "labels", "scores") if name in predictions}

    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        if not sums:
            return {}
        scores_NC = sums["scores"].astype(np.float64)
        if "labels" in sums:
            has_NC = sums["labels"] > 0
        else:
            has_NC = sums["label"][:, None] == np.arange(len(self.classes))
            scores_NC = log_odds(scores_NC)
        if np.isnan(scores_NC).any():
            return {self.spec.label: math.nan}
        if self.spec.average == "micro":
            has_NC, scores_NC = has_NC.reshape(-1, 1), scores_NC.reshape(-1, 1)
        each = [area_under_roc(has_N, scores_N) for has_N, scores_N in zip(has_NC.T, scores_NC.T, strict=True)]
        known = [(area, has_N.sum()) for area, has_N in zip(each, has_NC.T, strict=True) if area is not None]
        if not known:
            return {}
        areas, items = zip(*known, strict=True)
        found = {self.spec.label: float(np.average(areas, weights=items if self.spec.average == "weighted" else None))}
        named = zip(self.classes, each, strict=True) if self.spec.per_class else ()
        return found | {f"{self.spec.label}/{name}": area for name, area in named if area is not None}


def log_odds(scores_NC: np.ndarray) -> np.ndarray:
    """Return log p / (1 - p) of each class, float64 (N, C), which orders like its probability p; probabilities that
    round to 1 stay distinct. NaN where an item has a score that is NaN or +inf, and so no probabilities."""
    with np.errstate(invalid="ignore"):
        above_NC = scores_NC - scores_NC.max(1, keepdims=True)
    exponentials_NC = np.exp(above_NC)
    best_N = scores_NC.argmax(1)
    others_NC = exponentials_NC.sum(1, keepdims=True) - exponentials_NC
    rows = np.arange(len(scores_NC))
    exponentials_NC[rows, best_N] = 0
    others_NC[rows, best_N] = exponentials_NC.sum(1)  # a difference would round it away beside the largest
    with np.errstate(divide="ignore"):
        return np.asarray(above_NC - np.log(others_NC))


def area_under_roc(has_N: np.ndarray, scores_N: np.ndarray) -> float | None:
    """Return the area under the ROC curve by the scores of items in the class (bool) and of the others; None if either
    is empty.

    It is the Mann-Whitney statistic (Hanley & McNeil 1982).
    """
    of, others = int(has_N.sum()), int((~has_N).sum())
    if not of or not others:
        return None
    return float(mean_ranks(scores_N)[has_N].sum() - of * (of + 1) / 2) / (of * others)


@dataclass(frozen=True)
class SpanF1Metric(GatheredMetric):
    """See `SpanF1`."""

    spec: SpanF1
    classes: tuple[str, ...]

    @classmethod
    def build(cls, spec: SpanF1, classes: tuple[str, ...]) -> SpanF1Metric:
        """Return the metric of a spec; `classes` are the names of the classes."""
        return cls(spec, classes)

    def needed_arrays(self, predictions: Predictions) -> Mapping[str, Array]:
        return {name: predictions[name] for name in ("label", "predicted", "begins")}

    def values(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        if not sums:
            return {}
        types = types_of(self.classes)
        label, predicted = (spans_of(sums[name], sums["begins"], self.classes) for name in ("label", "predicted"))
        counts = np.array(
            [
                [sum(kind == type_ for *_, kind in spans) for type_ in types]
                for spans in (label & predicted, label, predicted)
            ]
        )
        correct, whole = 2 * counts[0], counts[1] + counts[2]
        each = correct / np.maximum(whole, 1)
        occurs = whole > 0
        if self.spec.average == "micro":
            average = float(correct.sum() / max(1, whole.sum()))
        else:
            average = float(each[occurs].mean()) if occurs.any() else 0.0
        named = zip(types, each.tolist(), strict=True) if self.spec.per_type else ()
        return {self.spec.label: average} | {f"{self.spec.label}/{name}": score for name, score in named}


def spans_of(class_N: np.ndarray, begins_N: np.ndarray, classes: tuple[str, ...]) -> set[tuple[int, int, str]]:
    """Return the entities of tokens with these classes: the first token, one past the last, and the type.

    `begins_N` says which tokens begin a text, bool (N,); the rules are those of seqeval's default mode for IOB2.
    """
    spans: set[tuple[int, int, str]] = set()
    start, type_ = 0, ""
    for at, (number, begins) in enumerate(zip(class_N.tolist(), begins_N.tolist(), strict=True)):
        name = classes[number]
        continues = not begins and name[:2] == "I-" and name[2:] == type_
        if type_ and not continues:
            spans.add((start, at, type_))
        if not continues:
            start, type_ = at, name[2:] if name != "O" else ""
    if type_:
        spans.add((start, len(class_N), type_))
    return spans
