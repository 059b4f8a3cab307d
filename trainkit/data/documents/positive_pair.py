"""Two texts that belong together as pieces, each a sequence, with the hard negatives of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainkit.data.documents.pieces import Piece, RowContext, as_document
from trainkit.data.documents.source_target import two_texts
from trainkit.data.documents.templates import parse
from trainkit.data.problems import Problem, kind_of, missing_key
from trainkit.recipe.sections.paired_documents import PositivePair


def make(document: PositivePair, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's texts: the query, the positive, the negatives."""
    pieces = two_texts(document, row, index)
    if isinstance(pieces, tuple):
        return pieces
    if pieces[0].text == pieces[1].text:
        return "has the same text as query and as positive", "every text finds itself, so there is nothing to learn"
    if document.negatives is None:
        return pieces
    texts = _negatives(document.negatives, document.negative_count, row)
    if isinstance(texts, tuple):
        return texts
    texts = [_written_as(document.positive, text) for text in texts]
    if pieces[1].text in texts:
        return f"has its positive in '{document.negatives}' too", "a query cannot find a text and not find it"
    more = (replace(pieces[1], text=text, bytes=len(text.encode()), further=True) for text in texts)
    return as_document([*pieces, *more])


def _written_as(template: str, text: str) -> str:
    """Return a text in the place of the key of a template; the text alone where the template has several keys."""
    parts = parse(template)
    if sum(is_key for _, is_key in parts) != 1:
        return text
    return "".join(text if is_key else part for part, is_key in parts)


def _negatives(key: str, count: int, row: Mapping[str, Any]) -> list[str] | Problem:
    """Return the first hard negatives of a row, or what is wrong with them."""
    if key not in row:
        return missing_key(key, row, "document.negatives", usual=("negative", "negatives", "hard_negatives"))
    found = [row[key]] if isinstance(row[key], str) else row[key]
    if not isinstance(found, list | tuple):
        return f"'{key}' is {kind_of(found)}, neither a string nor a list", "it holds the hard negatives of the query"
    if len(found) < count:
        return f"'{key}' has {len(found)} texts, and document.negative_count = {count}", "leave such rows out"
    for number, text in enumerate(found[:count]):
        if not isinstance(text, str) or not text.strip():
            what = "empty" if isinstance(text, str) else f"{kind_of(text)}, not a string"
            return f"'{key}[{number}]' is {what}", 'leave such rows out, or let data.on_error = "skip" count them'
    return list(found[:count])
