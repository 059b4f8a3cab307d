"""One shard as it grows: pieces of documents become tokens, marks and labels in a file."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO, NamedTuple

import numpy as np

from trainkit.data.cache.shards import DOCUMENT, FURTHER, LEARNED, SECOND, Encoding
from trainkit.data.documents.pieces import Label, Piece
from trainkit.data.jobs import Reporter
from trainkit.data.sources.source_file import SourceFile
from trainkit.data.sources.units import Unit
from trainkit.data.tokenizer.long_text import LongText
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.errors import TrainkitError
from trainkit.files import checksum


class _Row:
    """Ids that come as lists or arrays. An `array` takes a list faster than numpy does."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._ids = array({1: "B", 2: "H", 4: "I"}[dtype.itemsize])

    @property
    def length(self) -> int:
        return len(self._ids)

    def add(self, ids: list[int] | np.ndarray) -> None:
        if isinstance(ids, list):
            self._ids.fromlist(ids)
        else:
            self._ids.frombytes(ids.astype(self._dtype.newbyteorder("=")).tobytes())

    def concatenate(self) -> np.ndarray:
        return np.frombuffer(self._ids, self._dtype.newbyteorder("=")).astype(self._dtype, copy=False)


class _Tokens(NamedTuple):
    """The tokens of a piece, as many as there are so far; all (n,)."""

    ids: list[int] | np.ndarray
    learned: np.ndarray
    labels: np.ndarray | None = None


class ShardWriter:
    """Encodes the pieces of one split of a unit, and writes the arrays of their shard.

    Attributes:
        ends: where each document ends so far, in tokens of the shard.
        waiting: bytes that are not encoded yet.
        tokens, bytes, crc32, empty, learned, unknown, highest: what a `Shard` says of itself, so far.
    """

    def __init__(
        self,
        file: BinaryIO,
        unit: Unit,
        encoding: Encoding,
        tokenizer: LoadedTokenizer | None,
        text: LongText,
        reporter: Reporter,
    ) -> None:
        self._file, self._unit, self._encoding = file, unit, encoding
        self._tokenizer, self._text, self._reporter = tokenizer, text, reporter
        self._specials = unit.files[0].reading.has_special_tokens
        document = unit.files[0].reading.document
        self._pairs = document is not None and document.is_pair
        self._numbers = {file.path: number for number, file in enumerate(unit.files)}
        self._dtype = np.dtype(encoding.dtype).newbyteorder("<")
        self._pieces: list[Piece] = []
        self._sources: list[SourceFile] = []
        self._documents: list[tuple[int, int, int, int]] = []
        self._sizes: list[int] = []
        self._size = 0
        self._marks: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._kind = unit.labels
        self._hash = hashlib.blake2b(digest_size=8)
        self._label: Label = -1
        self._begins = False
        self.ends: list[int] = []
        self.waiting = self.tokens = self.bytes = self.crc32 = 0
        self.empty = self.learned = self.unknown = self.highest = 0

    def add(self, file: SourceFile, piece: Piece) -> None:
        """Add the next piece, to be encoded by `flush`. Raises TrainkitError as `flush`, or if an id is not in the
        vocabulary."""
        self._check_ids(file, piece)
        if piece.first:
            self._hash, self._label, self._size = hashlib.blake2b(digest_size=8), piece.label, 0
            if piece.last and not (piece.text if piece.ids is None else len(piece.ids)):
                self.empty += 1
                return
        self._hash.update(piece.text.encode() if piece.ids is None else piece.ids.tobytes())
        self._size += piece.bytes
        if piece.last:
            self._sizes.append(self._size)
            number = int.from_bytes(self._hash.digest(), "little")
            place = self._numbers[file.path], piece.index
            if isinstance(self._label, int):
                self._documents.append((*place, number, self._label))
            else:
                self._documents.append((*place, number, -1))
                self._labels.append(self._label)
        self._pieces.append(piece)
        self._sources.append(file)
        self.waiting += piece.bytes if piece.ids is None else piece.ids.nbytes
        self.bytes += piece.bytes

    def _check_ids(self, file: SourceFile, piece: Piece) -> None:
        size = self._tokenizer.vocab_size if self._tokenizer else 0
        if file.kind == "array" and piece.ids is not None and len(piece.ids) and int(piece.ids.max()) >= size:
            raise TrainkitError(
                f"the token id {int(piece.ids.max()):,} is not in the tokenizer's vocabulary of {size:,}",
                where=file.path,
                hint="it was made with another tokenizer; or its dtype is not what the recipe says",
            )

    @property
    def distinct(self) -> int:
        """Documents, where a text that is divided into several parts counts once."""
        return len({(file, index) for file, index, _, _ in self._documents})

    def flush(self) -> None:
        """Encode and write the pieces that wait. Raises TrainkitError if a sequence after the second has no token."""
        row = _Row(self._dtype)
        for file, piece, (ids, learned, labels) in zip(self._sources, self._pieces, self._encode_texts(), strict=True):
            before, after = self._around(piece, ids)
            if piece.further and not (len(before) or len(ids) or len(after)):  # its first token would be marked
                raise TrainkitError(
                    f"the tokenizer makes no token of a text of this row: {piece.text[:40]!r}",
                    where=file.place_of(piece.index),
                    hint="leave such rows out, or let data.encoding put tokens around each text: bos or eos = true",
                )
            for part in (before, ids, after):
                row.add(part)
            if self._unit.marked:
                # tokens around a document are learned if the token next to them is, but have no label
                same = len(learned) and labels is None
                around = np.pad(learned, (len(before), len(after)), "edge" if same else "constant")
                marks = (around * LEARNED | piece.second * SECOND).astype(np.uint8)
                marks[:1] |= np.uint8(piece.further * FURTHER)
                self._marks.append(marks)
                self.learned += int(around.sum())
            if labels is not None:
                labels = np.pad(labels, (len(before), len(after)), constant_values=-1)
                self._labels.append(labels)
            if piece.last:
                self.ends.append(self.tokens + row.length)
        self._write(row.concatenate())
        if not self._unit.marked:
            self.learned = self.tokens
        self._reporter.add(documents=sum(p.last for p in self._pieces), bytes=self.waiting, tokens=row.length)
        self._pieces, self._sources, self.waiting = [], [], 0

    def _encode_texts(self) -> Iterator[_Tokens]:
        """Yield the tokens of each piece that waits. A text that is continued may have some of its ids with the next
        piece."""
        if self._tokenizer is None:
            for piece in self._pieces:
                if piece.ids is not None:
                    yield _Tokens(piece.ids, np.full(len(piece.ids), True))
            return
        in_pieces = self._are_in_pieces()
        texts = [
            piece.text
            for piece, several in zip(self._pieces, in_pieces, strict=True)
            if piece.ids is None and piece.learned is None and piece.token_labels is None and not several
        ]
        whole = iter(self._tokenizer.encode_batch(texts, special_tokens=self._specials))
        parts = [(piece.text, piece.learned) for piece in self._pieces if piece.learned is not None]
        in_part = self._tokenizer.encode_parts(parts, special_tokens=self._specials)
        labelled = self._encode_labelled()
        for piece, several in zip(self._pieces, in_pieces, strict=True):
            if piece.token_labels is not None:
                yield next(labelled)
                continue
            if piece.learned is not None:
                yield _Tokens(*next(in_part))
                continue
            ids: list[int] | np.ndarray
            if piece.ids is not None:
                ids = piece.ids
            elif several:
                ids = self._text.add(piece.text, continued=piece.continued)
            else:
                ids = next(whole)
            yield _Tokens(ids, np.full(len(ids), piece.learn))

    def _encode_labelled(self) -> Iterator[_Tokens]:
        """Yield the tokens of each piece that waits and has labels."""
        assert self._tokenizer is not None
        for words, group in groupby((p for p in self._pieces if p.token_labels is not None), lambda p: p.words):
            texts = [(piece.text, piece.token_labels or ()) for piece in group]
            for ids, labels in self._tokenizer.encode_labelled(texts, words=words):
                yield _Tokens(ids, labels >= 0, labels)

    def _are_in_pieces(self) -> list[bool]:
        """Return of each piece that waits whether its text has other pieces."""
        in_pieces, continued = [], self._text.is_open
        for piece in self._pieces:
            in_pieces.append(continued or piece.continued)
            continued = piece.continued
        return in_pieces

    def _around(self, piece: Piece, ids: list[int] | np.ndarray) -> tuple[list[int], list[int]]:
        """Return the ids to put before and after those of a piece that begins or ends a document or a sequence."""
        if self._tokenizer is None:
            return [], []
        bos, eos = self._tokenizer.beginning_of_text, self._tokenizer.end_of_text
        # the first tokens of a long text may come with a later piece
        first, last = piece.first or piece.complete, piece.last or piece.complete
        begins = (first or self._begins) and self._encoding.bos
        self._begins = begins and not len(ids) and not last
        begins = begins and not self._begins and (not len(ids) or ids[0] != bos)
        ends = last and self._encoding.eos and (not len(ids) or ids[-1] != eos)
        assert bos is not None or not begins
        between = self._encoding.bos or self._encoding.between
        if self._pairs and between and not (piece.last or piece.continued or piece.second):
            return [bos] if begins else [], list(self._tokenizer.between)  # type: ignore[list-item]
        return [bos] if begins else [], [eos] if ends else []  # type: ignore[list-item]

    def _write(self, tokens: np.ndarray) -> None:
        if len(tokens):
            self.highest = max(self.highest, int(tokens.max()))
            if self._tokenizer is not None and self._tokenizer.unknown is not None:
                self.unknown += int((tokens == self._tokenizer.unknown).sum())
        self.tokens += len(tokens)
        self._append(tokens.tobytes())

    def finish(self) -> None:
        """Write the pieces that wait, and the arrays that follow the tokens."""
        self.flush()
        self._append(np.array(self.ends, "<u4").tobytes())
        self._append(np.array(self._documents, DOCUMENT).tobytes())
        if self._unit.marked:
            self._append(b"".join(mark.tobytes() for mark in self._marks))
        if self._kind is not None and self._kind.per != "record":
            self._append(b"".join(labels.astype(self._kind.stored).tobytes() for labels in self._labels))
        self._append(np.array(self._sizes, "<u4").tobytes())

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self.crc32 = checksum(data, self.crc32)
