"""Which documents are held out: decided by names and places alone, so that no other document matters.

A document is held out whole or not at all. The exception is a long text file, since a person's text is often one file:
it is divided into stretches, each twice as long as the one before until they are long enough, and one part of every
stretch is held out, at a place drawn by a keyed hash (stratified sampling: Cochran 1977, Sampling Techniques). So every
long document has its share in both splits, however few stretches it has, and text that is added at its end moves
nothing. Lengths are in characters.
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

#: The shortest possible first stretch. A document that does not fill its first stretch is not divided.
STRETCH = 1 << 15
#: The smaller of the two parts of a stretch: its length in the longest stretches, and its least length in the first.
LONG_PART, SHORT_PART = 1 << 15, 1 << 10

#: Where text is cut, best first: before a line that is not indented, before any line, before a space.
_BORDERS = (re.compile(r"\n(?=\S)"), re.compile(r"\n"), re.compile(r"[^ ](?= )"))


def shortest_divided(share: float) -> int:
    """Return the number of characters from which on text files are held out in parts."""
    return min(PIECE // 2, max(STRETCH, round(SHORT_PART / min(share, 1 - share))))


def treatment(file: SourceFile, share: float) -> str:
    """Return how a file is divided into documents and parts, as a part of the name of what is made from it."""
    return "text in parts" if share and file.kind == "text" else file.kind


def whole(file: SourceFile, index: int, share: float) -> Split:
    """Return the split of an undivided document, by its file's name and its place in that file."""
    return "held-out" if _draw(file, index) < share * 2**64 else "train"


def divide(pieces: Iterable[tuple[SourceFile, Piece]], share: float) -> Iterator[tuple[Split, SourceFile, Piece]]:
    """Yield each piece, or each part of it, with its split and its file; in order, together the whole text.

    A piece is `first` if it begins the part of a document that its split has, and `last` if the next piece of its split
    does not continue it. `share` of the text is held out; with 0, every piece is in "all", unchanged.
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
    """Divides one long document, whose pieces come one after the other."""

    def __init__(self, file: SourceFile, index: int, share: float) -> None:
        self._runs = _runs(file, index, share)
        self._run = next(self._runs)
        self._before = 0
        self._started: set[Split] = set()

    def of(self, piece: Piece) -> Iterator[tuple[Split, Piece]]:
        size, start = len(piece.text), 0
        while start < size:
            split, end, slack = self._run
            stop = _border(piece.text, end - self._before, slack)
            if stop > start:
                text = piece.text[start:stop]
                first, last = split not in self._started, piece.last and stop == size
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
                self._started.add(split)
                start = stop
            if start < size:
                self._run = next(self._runs)
        self._before += size


def _runs(file: SourceFile, index: int, share: float) -> Iterator[tuple[Split, int, int]]:
    """Yield (split, where its run ends, how many characters later it may also end), without end."""
    start, number = 0, 0
    length = shortest_divided(share)
    longest = max(length, round(LONG_PART / min(share, 1 - share)))
    while True:
        part = round(length * share)
        # small enough that neither part of the stretch can vanish
        slack = min(part, length - part) // 2
        place = start + _draw(file, index, number) % (length - part + 1)
        yield "train", place, slack
        yield "held-out", place + part, slack
        start, number, length = start + length, number + 1, min(2 * length, longest)


def _border(text: str, place: int, slack: int) -> int:
    """Return where to cut a text, at `place` or up to `slack` later; its end if the text ends before."""
    if place <= 0 or place >= len(text):
        return min(max(place, 0), len(text))
    for border in _BORDERS:
        if match := border.search(text, place - 1, place + slack):
            return match.end()
    return len(text) if place + slack >= len(text) else place


def _draw(file: SourceFile, *numbers: int) -> int:
    """Return a pseudorandom number of 64 bits that is always the same for the same place."""
    name = "\0".join([file.name, *map(str, numbers)]).encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=b"trainkit held-out").digest(), "little")
