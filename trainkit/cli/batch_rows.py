"""Rows of a batch as lines of text, for `trainkit inspect` and `trainkit cache-data --show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainkit.redaction import redact
from trainkit.text import Neutral, one_line

if TYPE_CHECKING:
    from trainkit.data.show import ShownRow

_DIM, _LEARNED, _PLAIN = "\x1b[2m", "\x1b[32m", "\x1b[0m"
#: The colours of hidden tokens that a random token replaces, and of those that stay.
_RANDOM, _KEPT = "\x1b[33m", "\x1b[36m"


def masks_legend(*, colour: bool) -> Iterator[str]:
    """Yield lines that say what the brackets after hidden tokens mean."""
    yield "tokens with brackets are hidden, and the step learns only these:"
    meanings = {
        "[masked]": "the mask token replaces it",
        "[random TOKEN]": "a random token replaces it",
        "[kept]": "it stays",
    }
    yield Neutral(
        "  "
        + " · ".join(
            f"{_paint(bracket, _colour_of(bracket)) if colour else bracket} {meaning}"
            for bracket, meaning in meanings.items()
        )
    )


def row_lines(row: ShownRow, *, colour: bool, masks: bool = False) -> Iterator[Neutral]:
    """Yield a row as neutral lines of text, without secrets in the names of files.

    Text that is not learned is dim, or between ⟪ and ⟫ without colours. With `masks`, learned tokens have the colours
    of `masks_legend`.
    """
    several = isinstance(row.label, list)
    shown = (", ".join(map(str, row.label)) or "none of the classes") if several else row.label
    label = f", label{'s' * several} {shown}" if row.label is not None else ""
    yield _line(f"row {row.row}: example {row.example} of {row.source}{label}")
    for piece in row.pieces:
        part = f"{piece.part}: " if piece.part else ""
        yield _line(f"  {part}{piece.where}" + (f", tokens {piece.first}–{piece.end - 1}" if piece.end else ""))
        text = "".join(_mark_text(text, learned, colour, masks) for text, learned in piece.runs)
        yield from (Neutral(f"    | {line}") for line in text.splitlines())


def _line(text: str) -> Neutral:
    return Neutral(one_line(redact(text)))


def _mark_text(text: str, learned: bool, colour: bool, masks: bool) -> str:
    # a text from a file must not move the cursor
    inert = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    if not colour:
        return inert if learned else f"⟪{inert}⟫"
    return _paint(inert, _DIM if not learned else _colour_of(inert) if masks else _LEARNED)


def _colour_of(token: str) -> str:
    """Return the colour of a hidden token, by the word in brackets after it."""
    fate = token.rpartition("[")[2]
    return _RANDOM if fate.startswith("random") else _KEPT if fate.startswith("kept") else _LEARNED


def _paint(text: str, mark: str) -> str:
    return "\n".join(f"{mark}{line}{_PLAIN}" for line in text.split("\n"))
