"""Two texts that belong together as pieces: two sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.data.documents.pieces import Piece, RowContext
from trainkit.data.documents.source_target import two_texts
from trainkit.data.problems import Problem
from trainkit.recipe.sections.paired_documents import PositivePair


def make(document: PositivePair, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's two texts, the query first."""
    pieces = two_texts(document, row, index)
    if not isinstance(pieces, tuple) and pieces[0].text == pieces[1].text:
        return "has the same text as query and as positive", "every text finds itself, so there is nothing to learn"
    return pieces
