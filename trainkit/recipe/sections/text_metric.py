"""Metrics of generated texts, which `[evaluate.generate]` writes: members of [[evaluate.metrics]]."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.sections.metric_spec import GENERATED, MetricSpec


class TextMetricSpec(MetricSpec):
    """What metrics of generated texts have in common."""

    predictions: ClassVar[frozenset[str]] = GENERATED


class ExactMatch(TextMetricSpec):
    """The share of generated texts that equal their target, without space around them."""

    type: Literal["exact-match"]
    normalize: bool = False
    """Whether to ignore case, punctuation, the articles a, an and the, and the amount of space (SQuAD, Rajpurkar et al.
    2016)."""

    implementation: ClassVar[str] = "trainkit.tasks.text_metrics:ExactMatchMetric"


class TokenF1(TextMetricSpec):
    """The mean F1 of the words that a generated text shares with its target, without capitals, punctuation and articles
    (SQuAD, Rajpurkar et al. 2016)."""

    type: Literal["token-f1"]

    implementation: ClassVar[str] = "trainkit.tasks.text_metrics:TokenF1Metric"


class Bleu(TextMetricSpec):
    """BLEU of the whole set, from 0 to 100 (Papineni et al. 2002), as sacrebleu computes it; needs the extra
    `metrics`."""

    type: Literal["bleu"]
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """How sacrebleu divides texts into words; `"13a"` is its default."""

    implementation: ClassVar[str] = "trainkit.tasks.text_metrics:BleuMetric"


class Chrf(TextMetricSpec):
    """chrF of the whole set, from 0 to 100 (Popović 2015), as sacrebleu computes it; needs the extra `metrics`."""

    type: Literal["chrf"]
    word_order: Literal[0, 2] = 0
    """2 is chrF++ (Popović 2017), which counts pairs of words too."""

    implementation: ClassVar[str] = "trainkit.tasks.text_metrics:ChrfMetric"


class Rouge(TextMetricSpec):
    """The mean F1 of shared words (`NAME/rouge1`), pairs of words (`NAME/rouge2`) and the longest common subsequence
    (`NAME/rougeL`), from 0 to 1 (Lin 2004), as rouge-score computes them; needs the extra `metrics`."""

    type: Literal["rouge"]
    stem: bool = False
    """Whether words are reduced to their stems, as is usual for published ROUGE of English."""

    implementation: ClassVar[str] = "trainkit.tasks.text_metrics:RougeMetric"
    parts: ClassVar[tuple[str, ...]] = ("rouge1", "rouge2", "rougeL")

    def names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{self.label}/{part}" for part in self.parts)


#: Every metric of generated texts.
TEXT_METRICS = (ExactMatch, TokenF1, Bleu, Chrf, Rouge)
