"""Judged answers as pieces: a prompt with its answer, and whether this is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainkit.data.documents.chat_template import ChatTemplate
from trainkit.data.documents.conversations import read_messages, render_taken, says_nothing, template_values
from trainkit.data.documents.pieces import Piece, RowContext, learned_in_part
from trainkit.data.documents.preferences import find_answer
from trainkit.data.documents.templates import fill
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.paired_documents import Judged, JudgedChat

_JUDGEMENTS: dict[Any, int] = {True: 1, False: 0, "true": 1, "false": 0}


def make(
    document: Judged | JudgedChat, row: Mapping[str, Any], index: int, context: RowContext
) -> list[Piece] | Problem:
    """Return one piece, a row's prompt and its answer, which is learned; the label is 1 or 0."""
    label = _judgement(document.label, row)
    if isinstance(label, tuple):
        return label
    if isinstance(document, Judged):
        piece = _text(document, row, index)
    else:
        assert context.chat is not None, "the chat template is resolved before anything is read"
        try:
            piece = _conversation(document, context.chat, row, index, columns=context.columns)
        except TrainkitError as error:
            return error.problem, error.hint
    return piece if isinstance(piece, tuple) else [replace(piece, label=label)]


def _judgement(key: str, row: Mapping[str, Any]) -> int | Problem:
    """Return 1 for a good answer and 0 for a bad one."""
    if key not in row:
        return missing_key(key, row, "document.label", usual=("label", "desirable", "rating"))
    found = row[key]
    value = found.strip().lower() if isinstance(found, str) else found
    # 1.0 equals true, but is no judgement
    if isinstance(value, bool | int | str) and value in _JUDGEMENTS:
        return _JUDGEMENTS[value]
    shown = (
        repr(found) if isinstance(found, int | float) else f"'{found}'" if isinstance(found, str) else kind_of(found)
    )
    return f"'{key}' is {shown}, neither true nor false", "write true for a good answer, false for a bad one"


def _text(document: Judged, row: Mapping[str, Any], index: int) -> Piece | Problem:
    prompt, answer = (fill(f"document.{name}", template, row) for name, template in document.templates.items())
    if isinstance(prompt, tuple):
        return prompt
    if isinstance(answer, tuple):
        return answer
    if not answer.strip():
        return "has an empty answer", "there is nothing to learn from it"
    return learned_in_part(index, prompt + answer, [(len(prompt), len(prompt) + len(answer))])


def _conversation(
    document: JudgedChat, template: ChatTemplate, row: Mapping[str, Any], index: int, *, columns: bool
) -> Piece:
    """Return the conversation as the template writes it. Raises TrainkitError."""
    keys = [document.answer, *([document.prompt] if document.prompt is not None else [])]
    values = template_values(row, keys, columns=columns)
    messages = read_messages(row, document.answer, "document.answer", columns=columns)
    if document.prompt is None:
        prompt, messages = messages[:-1], messages[-1:]
    else:
        prompt = read_messages(row, document.prompt, "document.prompt", columns=columns)
    if not prompt:
        raise TrainkitError("has no messages before the answer", hint="a conversation begins with a question")
    answers = [message for message in messages if message["role"] == "assistant"]
    if answers and all(map(says_nothing, answers)):
        raise TrainkitError("has an empty answer", hint="there is nothing to learn from it")
    if not answers:
        raise TrainkitError(
            f"'{document.answer}' does not end with an answer of the assistant",
            hint='answers look like {"role": "assistant", "content": "…"}',
        )
    text = render_taken(template, [*prompt, *messages], values)[1]
    begin = find_answer(template, prompt, [text], values)
    if not text[begin:].strip():
        raise TrainkitError("has an empty answer", hint="there is nothing to learn from it")
    return learned_in_part(index, text, [(begin, len(text))])
