"""Labelled words as pieces: one text, with the part that each labelled word has in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.data.documents.labels import class_number
from trainkit.data.documents.pieces import LabelledSpan, Piece, RowContext
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.labelled_documents import Tagged

#: One past the highest label of a token that a shard can hold.
_LABELS = 1 << 15
#: Values that mean no label, in tables and in data for PyTorch's cross-entropy.
_NONE = (None, -100)


def make(document: Tagged, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the one piece of a row: its words with spaces between them, and the labels of their tokens.

    A word's part of the text begins with the space before it, which byte-level tokenizers have in the word's first
    token, or as a token of its own.
    """
    lists: list[list[Any]] = []
    for setting, key, usual in (
        ("document.words", document.words, ("tokens", "words", "sentence")),
        ("document.labels", document.labels, ("labels", "tags", "ner_tags", "pos_tags")),
    ):
        if key not in row:
            return missing_key(key, row, setting, usual=usual)
        if not isinstance(row[key], list | tuple):
            return f"'{key}' is {kind_of(row[key])}, not a list", f"{setting} names a list with an entry for each word"
        lists.append(list(row[key]))
    words, labels = lists
    if len(words) != len(labels):
        return (
            f"'{document.words}' and '{document.labels}' differ in length: {len(words)} words, {len(labels)} labels",
            "each word has a label, which is null or -100 where it has none",
        )
    text, spans = "", []
    for number, (word, found) in enumerate(zip(words, labels, strict=True)):
        if not isinstance(word, str):
            return f"'{document.words}[{number}]' is {kind_of(word)}, not a string", ""
        if not (word := word.strip()):
            continue
        begin, text = len(text), f"{text} {word}" if text else word
        if found in _NONE:
            continue
        label = class_number(f"'{document.labels}[{number}]'", found, document.classes)
        if isinstance(label, tuple):
            return label
        if label >= _LABELS:
            return f"'{document.labels}[{number}]' is {label}; labels of words are less than {_LABELS}", ""
        spans.append(LabelledSpan(begin, len(text), label, every=document.subwords == "all"))
    return [Piece(index=index, text=text, bytes=len(text.encode()), token_labels=tuple(spans), words=True)]
