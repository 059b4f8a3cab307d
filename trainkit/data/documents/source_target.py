"""Sources with their targets as pieces: two sequences; the second one is learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainkit.data.documents.pieces import Piece, RowContext, pair
from trainkit.data.documents.templates import fill
from trainkit.data.problems import Problem
from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.sections.paired_documents import SourceTarget


def make(document: SourceTarget, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's two texts, the source first."""
    pieces = two_texts(document, row, index)
    return pieces if isinstance(pieces, tuple) else [replace(pieces[0], learn=False), pieces[1]]


def two_texts(document: DocumentSpec, row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    """Return the texts of a document's two templates, each a sequence of its own; an empty one is a problem."""
    texts: list[str] = []
    for name, template in document.templates.items():
        text = fill(f"document.{name}", template, row)
        if isinstance(text, tuple):
            return text
        if not text.strip():
            return f"has an empty {name}", 'leave such rows out, or let data.on_error = "skip" count them'
        texts.append(text)
    return pair(Piece(index=index, text=text, bytes=len(text.encode())) for text in texts)
