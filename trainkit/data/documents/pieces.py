"""Pieces of documents. Documents are read a piece at a time, so that no file is ever held whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from trainkit.data.documents.chat_template import ChatTemplate

#: Characters of a piece at most: longer texts come in several, unless only a part of them is learned.
PIECE = 1 << 20

#: (first character, one past the last) of a part of a text.
Characters = tuple[int, int]

#: A label: the number of a class, -1 for none, or what a shard keeps of another kind, (W,); see `labels.py`.
Label = int | np.ndarray


class LabelledSpan(NamedTuple):
    """A part of a text whose tokens have a label."""

    begin: int
    """Its first character."""
    end: int
    """One past its last character."""
    label: int
    every: bool = True
    """Whether each of its tokens has the label, also one that holds characters around it; else the first only."""
    adds: bool = False
    """Whether its label is bits that its tokens have beside those of other spans, instead of replacing them."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, or a part of a document that is long or has several texts.

    It has either `text` or `ids`. A text that is learned in part is one piece, since it is tokenised as a whole:
    tokenised in parts, it would have other tokens than those that the model meets when it is used.
    """

    index: int
    """Of the document in its file, from 0: its row; for lines the line's number less one."""
    text: str = ""
    ids: np.ndarray | None = None
    """Content that needs no tokenising, (n,): token ids, or bytes such as an image's pixels in rows of RGB."""
    bytes: int = 0
    """Of the text in UTF-8."""
    first: bool = True
    """Whether the document begins with it."""
    last: bool = True
    """Whether the document ends with it."""
    continued: bool = False
    """Whether the next piece continues its text: they are tokenised as one."""
    learn: bool = True
    """Whether its tokens are targets."""
    learned: tuple[Characters, ...] | None = None
    """Which parts of `text` are targets, in order; None if `learn` decides for the whole text."""
    token_labels: tuple[LabelledSpan, ...] | None = None
    """Labels of the tokens of `text`, which is tokenised as a whole; of a token in several spans the last one counts,
    unless it adds bits. Tokens with a label are targets, and no others. None where tokens have no labels."""
    words: bool = False
    """Whether a text with `token_labels` is words and spaces: a byte-level tokenizer sees a space before the first too.
    """
    second: bool = False
    """Whether it is the second text of a pair."""
    further: bool = False
    """Whether it is a sequence after the second of a document with more than two."""
    complete: bool = False
    """Whether it is a sequence of its own, which begins and ends with the tokens that begin and end a document."""
    label: Label = -1
    """The document's label, on its first piece; -1 if it has none."""


@dataclass(frozen=True)
class Refused:
    """A document that cannot be used: where it is (`:line`, `:byte 17`, `:row 3` or nothing, after the file's name),
    and why."""

    place: str
    problem: str
    hint: str = ""
    filtered: bool = False
    """Whether it was left out for its length, which is never an error."""
    bytes: int = 0
    """Bytes lost with it, as stored or as UTF-8; 0 if unknown."""

    @property
    def reason(self) -> str:
        """The problem without details of this document, so that equal problems can be counted. UTF-8 is no detail."""
        return re.sub(r"(?<![A-Za-z]-)(?<!\d)\d[\d,]*", "…", re.split(r"[:;]", self.problem, maxsplit=1)[0])


class RowContext(NamedTuple):
    """What a document depends on, apart from its row and the recipe's `document`."""

    base: str = ""
    """The directory that relative paths in the row count from."""
    columns: bool = False
    """Whether the row's format stores null for keys that an object does not have."""
    chat: ChatTemplate | None = None
    """The template that writes conversations."""


#: Called with each document that cannot be used: raises, or counts it and returns.
Refuse = Callable[[Refused], None]


@dataclass(frozen=True)
class Span:
    """A part of a file that can be read by itself."""

    start: int
    """Byte of a file of lines, row group of Parquet, row of a dataset: its first."""
    end: int
    """One past the last."""
    first: int
    """The index of its first document in the whole file."""
    digest: str
    """Of its content; empty if the digest of the whole file decides."""


def text_pieces(index: int, parts: Iterable[str]) -> Iterator[Piece]:
    """Yield the pieces of a document whose text comes in parts. A piece ends at the end of a line before an unindented
    line, if it has one."""
    waiting, first = "", True
    for part in parts:
        waiting += part
        while len(waiting) > PIECE:
            cut = _cut(waiting)
            text, waiting = waiting[:cut], waiting[cut:]
            yield Piece(index=index, text=text, bytes=len(text.encode()), first=first, last=False, continued=True)
            first = False
    yield Piece(index=index, text=waiting, bytes=len(waiting.encode()), first=first, last=True)


def learned_in_part(index: int, text: str, learned: Iterable[Characters]) -> Piece:
    """Return a document of which only these parts, in order, are learned; empty parts and overlaps are dropped."""
    parts: list[Characters] = []
    for begin, end in learned:
        begin = max(begin, parts[-1][1] if parts else 0)
        if begin < end and parts and parts[-1][1] == begin:
            parts[-1] = parts[-1][0], end
        elif begin < end:
            parts.append((begin, end))
    return Piece(index=index, text=text, bytes=len(text.encode()), learned=tuple(parts))


def as_document(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces that are together one document, in this order."""
    return [replace(piece, first=place == 0, last=place == len(pieces) - 1) for place, piece in enumerate(pieces)]


def pair(sequences: Iterable[Piece]) -> list[Piece]:
    """Return two sequences as one document, each complete and the second marked."""
    pieces = as_document(list(sequences))
    return [replace(piece, complete=True, second=place == 1) for place, piece in enumerate(pieces)]


def _cut(text: str) -> int:
    end = text.rfind("\n", PIECE // 2, PIECE)
    while end >= 0 and text[end + 1].isspace():
        end = text.rfind("\n", PIECE // 2, end)
    return end + 1 if end >= 0 else PIECE
