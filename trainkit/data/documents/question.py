"""Questions about texts as pieces: the question, then the context, with its answers marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from trainkit.data.documents.labels import TokenLabels
from trainkit.data.documents.pieces import LabelledSpan, Piece, RowContext, as_document
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.labelled_documents import QuestionInContext

#: The bits of a token's label. The first is set in batches alone: the token is in the target of its window. The others
#: are stored: the token is in the first answer, in the second and so on.
TARGET, FIRST_ANSWER = 1, 2
#: How many answers to a question are kept: a stored label has no more bits.
MOST_ANSWERS = 14
_SQUAD = 'SQuAD has {"text": ["…"], "answer_start": [0]}'


class AnswerLabels(TokenLabels):
    """Which answers a token is in, as bits; -1 outside the context."""

    predicted: ClassVar[bool] = False
    named: ClassVar[bool] = False

    def outside(self, values_N: np.ndarray, classes: int) -> np.ndarray:
        return np.zeros(len(values_N), bool)


class ContextPart(NamedTuple):
    """A part of the context that answers the question."""

    start: int
    """Its first character."""
    end: int
    """One past its last character."""


def make(document: QuestionInContext, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's question and of its context, which is the second text of the pair."""
    texts: list[str] = []
    for setting, key in (("document.question", document.question), ("document.context", document.context)):
        if key not in row:
            return missing_key(key, row, setting, usual=("question", "context", "passage"))
        if not isinstance(row[key], str):
            return f"'{key}' is {kind_of(row[key])}, not a string", f"{setting} names the key that holds it"
        if not row[key].strip():
            return f"'{key}' is empty", 'leave such rows out, or let data.on_error = "skip" count them'
        texts.append(row[key])
    answers = answers_of(document, row, texts[1])
    if isinstance(answers, tuple):
        return answers
    # some questions of SQuAD begin with spaces
    question, text = texts[0].strip(), texts[1]
    return as_document(
        [
            Piece(index=index, text=question, bytes=len(question.encode()), token_labels=()),
            Piece(index=index, text=text, bytes=len(text.encode()), token_labels=marks_of(answers), second=True),
        ]
    )


def answers_of(document: QuestionInContext, row: Mapping[str, Any], context: str) -> list[ContextPart] | Problem:
    """Return the different answers of a row, in its order, or what is wrong with one; the first is learned."""
    found = _texts_and_starts(document, row)
    if isinstance(found, tuple):
        return found
    if not found and not document.unanswerable:
        hint = "for questions that the context does not answer, as in SQuAD 2: document.unanswerable = true"
        return f"'{document.answers}' has no answer", hint
    answers: list[ContextPart] = []
    for name, text, start in found:
        if not isinstance(text, str) or not text.strip():
            return f"{name} is {'empty' if isinstance(text, str) else kind_of(text) + ', not a string'}", _SQUAD
        if not isinstance(start, int) or isinstance(start, bool):
            return f"the start of {name} is {kind_of(start)}, not a whole number", _SQUAD
        if problem := _misplacement(name, text, start, context):
            return problem
        answers.append(ContextPart(start, start + len(text)))
    return list(dict.fromkeys(answers))[:MOST_ANSWERS]


def _texts_and_starts(document: QuestionInContext, row: Mapping[str, Any]) -> list[tuple[str, Any, Any]] | Problem:
    """Return (name in errors, text, start) of each answer of a row."""
    key, start_key = document.answers, document.start
    if key not in row:
        return missing_key(key, row, "document.answers", usual=("answers", "answer"))
    found = row[key]
    if start_key is not None:
        if start_key not in row:
            return missing_key(start_key, row, "document.start", usual=("answer_start", "start"))
        return [(f"'{key}'", found, row[start_key])] if found else []
    if found is None:
        return []
    if isinstance(found, list | tuple) and all(isinstance(one, Mapping) for one in found):
        found = {name: [one.get(name) for one in found] for name in ("text", "answer_start")}
    if not isinstance(found, Mapping):
        hint = "where it is the text alone, document.start names the key of its first character"
        return f"'{key}' is {kind_of(found)}, neither an object nor a list of objects", f"{_SQUAD}; {hint}"
    lists: list[list[Any]] = []
    for name in ("text", "answer_start"):
        if not isinstance(each := found.get(name), list | tuple):
            return f"'{key}.{name}' is {kind_of(each)}, not a list", _SQUAD
        lists.append(list(each))
    texts, starts = lists
    if len(texts) != len(starts):
        return f"'{key}' has {len(texts)} texts and {len(starts)} starts", "each answer has one of both"
    return [(f"'{key}.text[{n}]'", text, start) for n, (text, start) in enumerate(zip(texts, starts, strict=True))]


def _misplacement(name: str, text: str, start: int, context: str) -> Problem | None:
    """Return that an answer is not at its place in the context; None if it is there."""
    if start < 0 or start + len(text) > len(context):
        problem = f"{name} would be characters {start} to {start + len(text)} of a context of {len(context)}"
    elif context[start : start + len(text)] != text:
        problem = f"at character {start} the context has '{context[start : start + len(text)]}', and {name} is '{text}'"
    else:
        return None
    at = context.find(text)
    where = f"the context has it at character {at}" if at >= 0 else "the context does not have it"
    return problem, f"{where}; starts count characters from 0"


def marks_of(answers: Sequence[ContextPart]) -> tuple[LabelledSpan, ...]:
    """Return the parts of a context that are answers, each with its bit; a token of several answers has all theirs."""
    return tuple(
        LabelledSpan(answer.start, answer.end, FIRST_ANSWER << number, adds=True)
        for number, answer in enumerate(answers)
    )
