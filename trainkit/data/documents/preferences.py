"""Preferences as pieces: a prompt with its better answer, and with its worse one, as two sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainkit.data.documents.chat_template import ChatTemplate, render
from trainkit.data.documents.conversations import (
    Message,
    read_messages,
    render_taken,
    says_nothing,
    template_values,
)
from trainkit.data.documents.labels import labels_of
from trainkit.data.documents.pieces import Piece, RowContext, learned_in_part, pair
from trainkit.data.documents.templates import fill
from trainkit.data.problems import Problem
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.paired_documents import PreferenceChat, PreferencePair

_SAME = "has the same answer as chosen and as rejected", "neither is better, so there is nothing to learn from it"


def make(
    document: PreferencePair | PreferenceChat, row: Mapping[str, Any], index: int, context: RowContext
) -> list[Piece] | Problem:
    """Return the pieces of a row's two sequences, the chosen answer's first; of each the answer is learned.

    The first has the margin, where the document has one."""
    if isinstance(document, PreferencePair):
        pieces = _texts(document, row, index)
    else:
        assert context.chat is not None, "the chat template is resolved before anything is read"
        try:
            pieces = _conversations(document, context.chat, row, index, columns=context.columns)
        except TrainkitError as error:
            return error.problem, error.hint
    labels = labels_of(document)
    if labels is None or isinstance(pieces, tuple):
        return pieces
    margin = labels.of_row(row)
    return margin if isinstance(margin, tuple) else [replace(pieces[0], label=margin), *pieces[1:]]


def _texts(document: PreferencePair, row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    texts: list[str] = []
    for name, template in document.templates.items():
        text = fill(f"document.{name}", template, row)
        if isinstance(text, tuple):
            return text
        texts.append(text)
    prompt, chosen, rejected = texts
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer.strip():
            return f"has an empty {name} answer", "there is nothing to learn from it"
    if chosen == rejected:
        return _SAME
    return pair(
        learned_in_part(index, prompt + answer, [(len(prompt), len(prompt) + len(answer))])
        for answer in (chosen, rejected)
    )


def _conversations(
    document: PreferenceChat, template: ChatTemplate, row: Mapping[str, Any], index: int, *, columns: bool
) -> list[Piece] | Problem:
    """Return the two conversations as the template writes them. Raises TrainkitError.

    What is learned begins where the text of one of them differs from that of the shared beginning with the words that
    ask for an answer, as trl has it (`DPOTrainer`), but in characters: a token that has some of both is learned.
    """
    keys = [document.chosen, document.rejected, *([document.prompt] if document.prompt is not None else [])]
    values = template_values(row, keys, columns=columns)
    before = [] if document.prompt is None else read_messages(row, document.prompt, "document.prompt", columns=columns)
    chosen, rejected = (
        [*before, *read_messages(row, key, f"document.{name}", columns=columns)]
        for name, key in (("chosen", document.chosen), ("rejected", document.rejected))
    )
    if chosen == rejected:
        return _SAME
    shared = len(before) if document.prompt is not None else _count_same(chosen, rejected)
    for key, messages in ((document.chosen, chosen), (document.rejected, rejected)):
        answers = [message for message in messages[shared:] if message["role"] == "assistant"]
        if answers and all(map(says_nothing, answers)):
            return f"has an empty answer in '{key}'", "there is nothing to learn from it"
        if not answers:
            return (
                f"'{key}' has no answer of the assistant after the messages that both conversations begin with",
                'answers look like {"role": "assistant", "content": "…"}',
            )
    if not shared:
        return "has no messages before the answers", "both conversations begin with the same question"
    texts = [render_taken(template, messages, values)[1] for messages in (chosen, rejected)]
    begin = find_answer(template, chosen[:shared], texts, values)
    return pair(learned_in_part(index, text, [(begin, len(text))]) for text in texts)


def find_answer(template: ChatTemplate, prompt: list[Message], texts: Sequence[str], values: Mapping[str, Any]) -> int:
    """Return the character where the answers begin in texts of conversations that begin with the same messages.

    Raises TrainkitError."""
    taken, bare = render_taken(template, prompt, values)
    asked = render(template, taken, add_generation_prompt=True, values=values)
    begin = min(_count_same(asked, text) for text in texts)
    if begin < _count_same(asked, bare):
        raise TrainkitError(
            "the chat template writes the messages before the answers differently when an answer follows",
            hint=f"so where the answers begin is unknown; the template is {template.origin}",
        )
    return begin


def _count_same(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many items both sequences begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
