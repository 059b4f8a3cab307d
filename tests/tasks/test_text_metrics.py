"""Metrics of generated texts: the numbers of sacrebleu, rouge-score and SQuAD's evaluation."""

from __future__ import annotations

import sys

import pytest
import sacrebleu
from pydantic import TypeAdapter
from rouge_score.rouge_scorer import RougeScorer

from trainkit.errors import TrainkitError
from trainkit.recipe.sections.metric import METRICS
from trainkit.recipe.sections.metric_spec import Metric
from trainkit.recipe.sections.text_metric import TEXT_METRICS
from trainkit.tasks.text_metrics import build_text_metrics, token_f1

GENERATED = ["the cat sat on the mat", "A dog, running!", "", "twenty two", "the end"]
TARGETS = ["a cat is on the mat", "dog running", "nothing", "twenty two", "The End."]


def values_of(**metric: object) -> dict[str, float]:
    spec = TypeAdapter(Metric).validate_python(metric)
    (built,) = build_text_metrics([spec])
    found = dict(built.values(GENERATED, TARGETS))
    assert set(found) == set(spec.names(()))
    return found


def test_bleu_and_chrf_are_those_of_sacrebleu() -> None:
    assert values_of(type="bleu") == {"bleu": sacrebleu.corpus_bleu(GENERATED, [TARGETS]).score}
    by_letter = sacrebleu.corpus_bleu(GENERATED, [TARGETS], tokenize="char").score
    assert values_of(type="bleu", tokenize="char", name="letters") == {"letters": by_letter}
    assert values_of(type="chrf") == {"chrf": sacrebleu.corpus_chrf(GENERATED, [TARGETS]).score}
    with_words = sacrebleu.corpus_chrf(GENERATED, [TARGETS], word_order=2).score
    assert values_of(type="chrf", word_order=2, name="with_words") == {"with_words": with_words}


@pytest.mark.parametrize("stem", [False, True])
def test_rouge_is_the_mean_of_rouge_score(stem: bool) -> None:
    found, scorer = values_of(type="rouge", stem=stem), RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)
    scores = [scorer.score(target, text) for text, target in zip(GENERATED, TARGETS, strict=True)]
    for part in ("rouge1", "rouge2", "rougeL"):
        assert found[f"rouge/{part}"] == pytest.approx(sum(score[part].fmeasure for score in scores) / len(scores))


def test_exact_match_and_f1_of_words_are_those_of_squad() -> None:
    assert values_of(type="exact-match") == {"exact_match": 1 / 5}
    assert values_of(type="exact-match", normalize=True) == {"exact_match": 3 / 5}
    # 3 of 4 words and 3 of 4 words; all; none; all; all
    assert token_f1(GENERATED[0], TARGETS[0]) == pytest.approx(2 * 3 / (4 + 4))
    assert values_of(type="token-f1")["token_f1"] == pytest.approx((0.75 + 1 + 0 + 1 + 1) / 5)
    assert token_f1("the", "a") == 1.0, "neither has a word left"


def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(TrainkitError, match=r'"bleu" needs sacrebleu, which is not installed') as error:
        values_of(type="bleu")
    assert "--extra metrics" in error.value.hint
    assert set(TEXT_METRICS) < set(METRICS)
