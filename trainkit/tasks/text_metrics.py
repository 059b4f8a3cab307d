"""Metrics of generated texts: each compares the text that a model wrote with the target, on the host."""

from __future__ import annotations

import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.metric_spec import MetricSpec
from trainkit.recipe.sections.text_metric import Bleu, Chrf, ExactMatch, Rouge, TextMetricSpec, TokenF1
from trainkit.recipe.spec import implementation_of

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextMetric(ABC):
    """What an evaluation computes from generated texts."""

    @abstractmethod
    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        """Return its values by full name, as its spec's `names` lists them; there is at least one text."""


def build_text_metrics(specs: Sequence[MetricSpec]) -> list[TextMetric]:
    """Return those of a recipe's metrics that compare generated texts.

    Raises:
        TrainkitError: the library that computes one of them is not installed.
    """
    return [implementation_of(spec).build(spec) for spec in specs if isinstance(spec, TextMetricSpec)]


@dataclass(frozen=True)
class ExactMatchMetric(TextMetric):
    """See `ExactMatch`."""

    spec: ExactMatch

    @classmethod
    def build(cls, spec: ExactMatch) -> ExactMatchMetric:
        """Return the metric of a spec."""
        return cls(spec)

    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        plain = squad_words if self.spec.normalize else str.strip
        same = sum(plain(ours) == plain(target) for ours, target in zip(generated, targets, strict=True))
        return {self.spec.label: same / len(targets)}


@dataclass(frozen=True)
class TokenF1Metric(TextMetric):
    """See `TokenF1`."""

    spec: TokenF1

    @classmethod
    def build(cls, spec: TokenF1) -> TokenF1Metric:
        """Return the metric of a spec."""
        return cls(spec)

    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        scores = [token_f1(ours, target) for ours, target in zip(generated, targets, strict=True)]
        return {self.spec.label: sum(scores) / len(scores)}


def squad_words(text: str) -> list[str]:
    """Return the words of a text without capitals, punctuation and articles, as SQuAD's evaluation compares them."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(text: str, target: str) -> float:
    """Return the F1 of the words that two texts share; where one has none, whether the other has none either."""
    words, wanted = squad_words(text), squad_words(target)
    if not words or not wanted:
        return float(words == wanted)
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted))


@dataclass(frozen=True)
class BleuMetric(TextMetric):
    """See `Bleu`."""

    label: str
    bleu: Any

    @classmethod
    def build(cls, spec: Bleu) -> BleuMetric:
        """Return the metric of a spec."""
        return cls(spec.label, _library("sacrebleu", spec).BLEU(tokenize=spec.tokenize))

    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        return {self.label: float(self.bleu.corpus_score(list(generated), [list(targets)]).score)}


@dataclass(frozen=True)
class ChrfMetric(TextMetric):
    """See `Chrf`."""

    label: str
    chrf: Any

    @classmethod
    def build(cls, spec: Chrf) -> ChrfMetric:
        """Return the metric of a spec."""
        return cls(spec.label, _library("sacrebleu", spec).CHRF(word_order=spec.word_order))

    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        return {self.label: float(self.chrf.corpus_score(list(generated), [list(targets)]).score)}


@dataclass(frozen=True)
class RougeMetric(TextMetric):
    """See `Rouge`."""

    label: str
    scorer: Any

    @classmethod
    def build(cls, spec: Rouge) -> RougeMetric:
        """Return the metric of a spec."""
        library = _library("rouge_score.rouge_scorer", spec)
        return cls(spec.label, library.RougeScorer(list(spec.parts), use_stemmer=spec.stem))

    def values(self, generated: Sequence[str], targets: Sequence[str]) -> Mapping[str, float]:
        scores = [self.scorer.score(target, ours) for ours, target in zip(generated, targets, strict=True)]
        return {
            f"{self.label}/{part}": float(sum(score[part].fmeasure for score in scores) / len(scores))
            for part in Rouge.parts
        }


def _library(name: str, spec: TextMetricSpec) -> Any:
    """Return the module that computes a metric. Raises TrainkitError if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise TrainkitError(
            f'the metric "{spec.type}" needs {error.name}, which is not installed',
            where="evaluate.metrics",
            hint="uv sync --extra metrics   (or: pip install 'trainkit[metrics]')",
        ) from None
