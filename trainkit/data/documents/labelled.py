"""Labelled text as pieces: one text, or a pair with the second text marked, and its label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainkit.data.documents.labels import labels_of
from trainkit.data.documents.pieces import Piece, RowContext, as_document, text_pieces
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.labelled_documents import Labelled


def make(document: Labelled, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """See `make_labelled`."""
    return make_labelled(document, row, index)


def make_labelled(document: Labelled, row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    """Return the pieces of a row's text or two texts; the first has the label.

    A pair is one document: the second text's pieces have `second`, and none of them is its first. An empty text has no
    piece, unless there is nothing else. Raises UnicodeEncodeError if a text cannot be written as UTF-8.
    """
    texts: list[str] = []
    for key in document.texts:
        if key not in row:
            return missing_key(key, row, "document.texts", usual=("text", "sentence", "content"))
        found = row[key]
        if not isinstance(found, str):
            return f"'{key}' is {kind_of(found)}, not a string", "document.texts names the keys that hold text"
        texts.append(found)
    labels = labels_of(document)
    assert labels is not None
    label = labels.of_row(row)
    if isinstance(label, tuple):
        return label
    pieces = [
        replace(piece, second=number == 1)
        for number, text in enumerate(texts)
        if text
        for piece in text_pieces(index, [text])
    ]
    pieces = as_document(pieces or [Piece(index=index)])
    return [replace(pieces[0], label=label), *pieces[1:]]
