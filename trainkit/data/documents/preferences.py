"""Preferences as pieces: a prompt with its better answer, and with its worse one, as two sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.data.documents.pieces import Piece, RowContext, learned_in_part, pair
from trainkit.data.documents.templates import fill
from trainkit.data.problems import Problem
from trainkit.recipe.sections.document import PreferencePair


def make(document: PreferencePair, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """Return the pieces of a row's two sequences, the chosen answer's first; of each the answer is learned."""
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
        return (
            "has the same answer as chosen and as rejected",
            "neither is better, so there is nothing to learn from it",
        )
    return pair(
        learned_in_part(index, prompt + answer, [(len(prompt), len(prompt) + len(answer))])
        for answer in (chosen, rejected)
    )
