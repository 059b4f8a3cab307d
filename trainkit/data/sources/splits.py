"""What is trained on and what is held out: decided by names and places alone, so that no other document matters.

A document is held out whole or not at all, but for long text files: of these, parts are, since a person's text is often
one file. Such a document is thought of as stretches, each twice as long as the one before until they are long enough,
and of every stretch one part is held out, at a place drawn by a keyed hash: stratified sampling (Cochran 1977, Sampling
Techniques). So every long document has its share in both splits, however few stretches it has; and text that is added
at its end moves nothing. Lengths are in characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from trainkit.data.documents.pieces import PIECE, Piece
from trainkit.data.sources.source_file import SourceFile

Split = Literal["all", "train", "held-out"]

#: The first stretch has at least so many characters; a document that does not fill it is not divided.
STRETCH = 1 << 15
#: Of the two parts of a stretch the smaller has so many in the longest stretches, and at least so many in the first.
LONG_PART, SHORT_PART = 1 << 15, 1 << 10

#: Where text is cut, best first: before a line that is not indented, before any line, before a space.
_BORDERS = (re.compile(r"\n(?=\S)"), re.compile(r"\n"), re.compile(r"[^ ](?= )"))


def shortest_divided(share: float) -> int:
    """Text files of so many characters or more are held out in parts."""
    return min(PIECE // 2, max(STRETCH, round(SHORT_PART / min(share, 1 - share))))


def treatment(file: SourceFile, share: float) -> str:
    """How a file becomes documents and parts of them: what belongs into the name of what is made of it."""
    return "text in parts" if share and file.kind == "text" else file.kind


def whole(file: SourceFile, index: int, share: float) -> Split:
    """Where a document is that is not divided, by its file's name and its own place in that file."""
    return "held-out" if _draw(file, index) < share * 2**64 else "train"


def divide(pieces: Iterable[tuple[SourceFile, Piece]], share: float) -> Iterator[tuple[Split, SourceFile, Piece]]:
    """Each piece, or each part of it, with its split and its file; in order, together the whole text.

    A piece is `first` where it begins what its split has of a document, and `last` where the next of its split does not
    go on where it ends. `share` of the text is held out; of 0, everything is in "all", as it comes.
    """
    if not share:
        for file, piece in pieces:
            yield "all", file, piece
        return
    waiting: tuple[Split, SourceFile, Piece] | None = None
    for split, file, piece in _place_pieces(pieces, share):
        if waiting:
            before, its_file, text = waiting
            yield before, its_file, text if before == split or text.last else replace(text, last=True, continued=False)
        waiting = split, file, piece
    if waiting:
        yield waiting


def _place_pieces(
    pieces: Iterable[tuple[SourceFile, Piece]], share: float
) -> Iterator[tuple[Split, SourceFile, Piece]]:
    parts: _Parts | None = None
    for file, piece in pieces:
        if piece.first:
            divided = file.kind == "text" and len(piece.text) >= shortest_divided(share)
            parts = _Parts(file, piece.index, share) if divided else None
        if parts:
            yield from ((split, file, part) for split, part in parts.of(piece))
        else:
            yield whole(file, piece.index, share), file, piece


class _Parts:
    """Cuts one long document, whose pieces come one after the other."""

    def __init__(self, file: SourceFile, index: int, share: float) -> None:
        self._runs = _runs(file, index, share)
        self._run = next(self._runs)
        self._before = 0
        self._begun: set[Split] = set()

    def of(self, piece: Piece) -> Iterator[tuple[Split, Piece]]:
        size, start = len(piece.text), 0
        while start < size:
            split, end, slack = self._run
            stop = _border(piece.text, end - self._before, slack)
            if stop > start:
                text = piece.text[start:stop]
                first, last = split not in self._begun, piece.last and stop == size
                yield (
                    split,
                    Piece(
                        index=piece.index,
                        text=text,
                        bytes=len(text.encode()),
                        first=first,
                        last=last,
                        continued=not last,
                    ),
                )
                self._begun.add(split)
                start = stop
            if start < size:
                self._run = next(self._runs)
        self._before += size


def _runs(file: SourceFile, index: int, share: float) -> Iterator[tuple[Split, int, int]]:
    """(split, where its run ends, how many characters later it may end as well), without end."""
    start, number = 0, 0
    length = shortest_divided(share)
    longest = max(length, round(LONG_PART / min(share, 1 - share)))
    while True:
        part = round(length * share)
        # so few that neither part of the stretch can vanish
        slack = min(part, length - part) // 2
        place = start + _draw(file, index, number) % (length - part + 1)
        yield "train", place, slack
        yield "held-out", place + part, slack
        start, number, length = start + length, number + 1, min(2 * length, longest)


def _border(text: str, place: int, slack: int) -> int:
    """Where to cut a text at `place` or up to `slack` later; its end where it ends before that."""
    if place <= 0 or place >= len(text):
        return min(max(place, 0), len(text))
    for border in _BORDERS:
        if found := border.search(text, place - 1, place + slack):
            return found.end()
    return len(text) if place + slack >= len(text) else place


def _draw(file: SourceFile, *numbers: int) -> int:
    """A number of 64 bits that looks drawn at random, the same for ever."""
    name = "\0".join([file.name, *map(str, numbers)]).encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=b"trainkit held-out").digest(), "little")
