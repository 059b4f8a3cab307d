"""Answers that a model finds in texts, compared with the answers in the set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from trainkit.data.cache.section import SourceSpan
from trainkit.data.documents.question import FIRST_ANSWER, MOST_ANSWERS
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.evaluation.results import PredictionTable
from trainkit.recipe import Recipe
from trainkit.recipe.sections.labelled_documents import QuestionInContext
from trainkit.recipe.sections.source import document_of
from trainkit.recipe.sections.task import QuestionAnswering
from trainkit.tasks.text_metrics import squad_words, token_f1


@dataclass
class _Question:
    """What the windows of a question have shown so far."""

    place: SourceSpan
    asked: list[int]
    """The tokens before the context."""
    answers: dict[int, dict[int, int]] = field(default_factory=dict)
    """Of each answer in the set, by its number, the tokens by their place in the document."""
    score: float = -math.inf
    null_score: float = math.inf
    found: list[int] = field(default_factory=list)
    """The tokens of the answer with the highest score."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """The parts of the document so far: the first token, and one past the last."""

    @property
    def is_whole(self) -> bool:
        """Whether the parts leave out nothing of the document."""
        end = 0
        for first, after in sorted(self.seen):
            if first > end:
                return False
            end = max(end, after)
        return end == self.place.size


class AnswerReport:
    """Finds the answer to each question of a set, and returns the share of those that are right, and their F1.

    Of the answers of all windows of a question the one with the highest score counts. Texts are those of the tokens,
    compared as SQuAD compares them; of several answers in the set the one counts that is most like the model's. A
    question does not count where the set has only some of its windows.
    """

    reads_predictions: ClassVar[bool] = True

    def __init__(self, codec: LoadedTokenizer, *, unanswerable: bool, null_threshold: float) -> None:
        """With `unanswerable`, no answer is given to questions whose first token scores higher by the threshold."""
        self._codec, self._unanswerable, self._null_threshold = codec, unanswerable, null_threshold
        self._special = frozenset(codec.special_tokens.values())

    def __call__(self, state: Any, data: Any, table: PredictionTable) -> dict[str, float]:
        """Return the values of a set from the predictions in a table, which then holds texts instead."""
        questions: dict[tuple[str, int, int], _Question] = {}
        for places, predictions in table.take_rows():
            key = places[0].section.shard.key, places[0].file, places[0].index
            if key not in questions:
                before = int((predictions["answers"][1:] >= 0).argmax()) + 1  # where the context begins
                questions[key] = _Question(places[0], predictions["tokens"][:before].tolist())
            _add_window(questions[key], places, predictions)
        exact: list[float] = []
        f1: list[float] = []
        for question in (one for one in questions.values() if one.is_whole):
            found = self._find_text(question)
            target = max(self._answers(question), key=lambda answer: _likeness(found, answer))  # the first if equal
            texts = {"text": self._text(question.asked), "target": target, "generated": found}
            table.add_texts(question.place, texts)
            is_same, shared = _likeness(found, target)
            exact.append(is_same)
            f1.append(shared)
        return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))} if exact else {}

    def _find_text(self, question: _Question) -> str:
        """Return the text of a question's answer; empty where the model finds none."""
        if self._unanswerable and question.null_score - question.score > self._null_threshold:
            return ""
        return self._text(question.found)

    def _answers(self, question: _Question) -> Iterator[str]:
        """Yield the text of each answer in the set; an empty one where there is none."""
        known = [tokens for _, tokens in sorted(question.answers.items())]
        for tokens in known or [{}]:
            yield self._text([tokens[place] for place in sorted(tokens)])

    def _text(self, ids: Sequence[int]) -> str:
        return self._codec.decode([token for token in ids if token not in self._special]).strip()


def _add_window(question: _Question, places: Sequence[SourceSpan], predictions: Mapping[str, np.ndarray]) -> None:
    """Add a window's answers, and what the model finds in it. `predictions` are those of one row."""
    first, last, score = int(predictions["first"]), int(predictions["last"]), float(predictions["score"])
    question.null_score = min(question.null_score, float(predictions["null_score"]))
    if score > question.score:
        question.score, question.found = score, predictions["tokens"][first : last + 1].tolist()
    position = np.concatenate([np.arange(place.first, place.end) for place in places])
    question.seen += [(place.first, place.end) for place in places]
    bits, tokens = predictions["answers"][: len(position)], predictions["tokens"]
    for number in range(MOST_ANSWERS):
        for at in np.flatnonzero((bits > 0) & (bits & (FIRST_ANSWER << number) > 0)).tolist():
            question.answers.setdefault(number, {})[int(position[at])] = int(tokens[at])


def _likeness(found: str, answer: str) -> tuple[float, float]:
    """Return whether two texts have the same words, as 1 or 0, and the F1 of their words."""
    return float(squad_words(found) == squad_words(answer)), token_f1(found, answer)


def answer_report(recipe: Recipe, codec: LoadedTokenizer | None) -> AnswerReport:
    """Return the report of a recipe's answers."""
    assert codec is not None, "questions are texts"
    assert isinstance(recipe.task, QuestionAnswering)
    documents = (document_of(source) for source in (*recipe.data.train, *recipe.data.validation))
    return AnswerReport(
        codec,
        unanswerable=any(isinstance(document, QuestionInContext) and document.unanswerable for document in documents),
        null_threshold=recipe.task.null_threshold,
    )
