"""Examples of the spans of documents that `packing` finds in each shard: windows, packed rows and padded ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainkit.data.batches import packing
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.cache.stream import Stream
from trainkit.data.documents.labels import labels_of, no_label
from trainkit.recipe.sections.data import Encoding, Pack, Pad
from trainkit.recipe.sections.document_spec import DocumentSpec


class DocumentSpan(NamedTuple):
    """A part of a section that takes `length` positions of an example."""

    section: int
    start: int
    """In tokens of the section."""
    length: int
    context: int
    """Positions at its beginning whose targets another window has."""


class SpanExamples:
    """Example i has one span, or those that are packed together."""

    def __init__(
        self,
        stream: Stream,
        document: DocumentSpec | None,
        spec: Encoding,
        length: int,
        cache: Path,
        *,
        shifted: bool = True,
    ) -> None:
        self._stream, self._spec, self._length, self._cache = stream, spec, length, cache
        self._labels = labels_of(document)
        self._token_labels = self._labels is not None and self._labels.per == "token"
        self._sequences = 1 if document is None else document.sequences
        self._shift = int(shifted)
        self._frames: list[PackedSpans] = []
        self._firsts = np.zeros(1, np.int64)

    def wait(self, count: int | None) -> int | None:
        while True:
            # read before the sections: sections added meanwhile are taken by the next round
            complete, tokens = self._stream.complete, self._stream.tokens
            self._frame()
            if complete:
                return int(self._firsts[-1])
            if count is not None and self._firsts[-1] >= count:
                return None
            self._stream.wait(None if count is None else tokens + 1)

    @property
    def counts(self) -> packing.PackingCounts:
        """Return what became of the documents so far."""
        return packing.PackingCounts(*(sum(column) for column in zip(*(f.counts for f in self._frames), strict=True)))

    def read(self, which: np.ndarray, length: int) -> Batch:
        self._check(which)
        batch = self._empty_batch(which, length)
        of_row = {"example", "filled"} | (set() if self._token_labels else {"labels"})
        for row, example in enumerate(which.tolist()):
            filled = 0
            for number, span in enumerate(self._spans(example), 1):
                place = slice(filled, filled + span.length)
                places = {name: array[row, place] for name, array in batch.items() if name not in of_row}
                self._fill(places, number, span)
                if "labels" in batch and not self._token_labels:
                    batch["labels"][row] = self._stream.unverified_arrays(span.section).label_at(span.start)
                filled += span.length
            if "filled" in batch:
                batch["filled"][row] = filled
        return batch

    def _empty_batch(self, which: np.ndarray, length: int) -> Batch:
        shape = (len(which), length)
        batch = {"tokens": np.zeros(shape, self._stream.dtype)}
        if self._shift:
            batch["targets"] = np.zeros(shape, self._stream.dtype)
        else:
            batch["example"] = which.astype(np.uint32)
        batch["weights"] = np.zeros(shape, np.float32)
        if isinstance(self._spec, Pack):
            batch |= {"segments": np.zeros(shape, np.int32), "positions": np.zeros(shape, np.int32)}
        else:
            batch["filled"] = np.zeros(len(which), np.int32)
        if labels := self._labels:
            of = shape if self._token_labels else (len(which), *labels.shape)
            empty = np.full(of, no_label(labels.dtype), labels.dtype)
            batch |= {"labels": empty, "second": np.zeros(shape, np.uint8)}
        return batch

    def _fill(self, place: Batch, number: int, span: DocumentSpan) -> None:
        """Write a span, the example's `number`-th from 1, into its positions (span.length,) of each array."""
        arrays, tokens = self._stream.unverified_arrays(span.section), self._tokens_of(span)
        learned = tokens
        place["tokens"][:] = arrays.tokens[tokens]
        if self._shift:
            learned = slice(span.start + 1, span.start + span.length + 1)
            place["targets"][:] = arrays.tokens[learned]
        place["weights"][span.context :] = (
            1 if arrays.marks is None else arrays.marks[learned][span.context :] & LEARNED
        )
        if "segments" in place:
            place["segments"][:] = number
            place["positions"][:] = np.arange(span.length)
        if "second" in place and arrays.marks is not None:
            place["second"][:] = (arrays.marks[tokens] & SECOND) // SECOND
        if self._token_labels and arrays.labels is not None:
            place["labels"][span.context :] = arrays.labels[tokens][span.context :]

    def _tokens_of(self, span: DocumentSpan) -> slice | np.ndarray:
        """Return which tokens of its section a span has: those from its start on, up to the end or where it is cut off.

        Where targets are not the next tokens, a text that is cut off keeps its last token, which ends it, and of two
        texts in one sequence the longer one is cut first, as with `truncation=True` in transformers.
        """
        tokens, spec = slice(span.start, span.start + span.length), self._spec
        keeps_end = not self._shift and isinstance(spec, Pack | Pad) and spec.eos and spec.too_long == "truncate"
        if not keeps_end or span.length < self._length:
            return tokens
        arrays = self._stream.unverified_arrays(span.section)
        document = int(arrays.ends.searchsorted(arrays.ends.dtype.type(span.start), "right"))
        if document == len(arrays.ends):  # it continues in the next shard
            return tokens
        end = border = int(arrays.ends[document])
        if arrays.marks is not None:
            is_first = arrays.marks[span.start : end] & SECOND == 0
            border = span.start + int(is_first.sum()) if is_first[0] else end
        if self._sequences > 1:
            end = border
        if end - span.start <= span.length:
            return tokens
        if border == end:
            return np.append(np.arange(span.start, span.start + span.length - 1), end - 1)
        before, between = span.start + int(self._stream.begins), border - self._stream.between
        room = span.length - (before - span.start) - (border - between) - 1
        first, second = longest_first(between - before, end - 1 - border, max(0, room))
        parts = (span.start, before + first), (between, border + second), (end - 1, end)
        return np.concatenate([np.arange(*part) for part in parts])[: span.length]

    def sizes(self) -> np.ndarray:
        self._frame()
        return np.concatenate([np.zeros(0, np.int64), *(self._packed(n).longest for n in range(len(self._frames)))])

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        self._check(np.array([which]))
        for section, start, count, _ in self._spans(which):
            yield tuple(self._stream.places(self._stream.first_of(section) + start, count + self._shift))

    def _spans(self, example: int) -> Iterator[DocumentSpan]:
        section = int(np.searchsorted(self._firsts, example, side="right")) - 1
        frame = self._frames[section]
        number = example - int(self._firsts[section])
        for span in range(int(frame.offsets[number]), int(frame.offsets[number + 1])):
            yield DocumentSpan(section, int(frame.starts[span]), int(frame.lengths[span]), int(frame.contexts[span]))

    def _check(self, which: np.ndarray) -> None:
        """Check the sections of these examples, whose shards and spans may have been written to."""
        for number in set((np.searchsorted(self._firsts, which, side="right") - 1).tolist()):
            self._stream.arrays(number)
            self._packed(number)

    def _packed(self, number: int) -> PackedSpans:
        """Return the spans of the examples of a section, made again if their file was written to."""
        packed = self._frames[number]
        if packed.version is not None and packed.version.is_overwritten():
            self._frames[number] = packed = self._spans_of(number)
        return packed

    def _frame(self) -> None:
        """Take in the sections that are new."""
        for number in range(len(self._frames), len(self._stream.sections)):
            made = self._spans_of(number)
            self._frames.append(made)
            self._firsts = np.append(self._firsts, self._firsts[-1] + len(made))

    def _spans_of(self, number: int) -> PackedSpans:
        """Return the spans of the examples of a section."""
        section = self._stream.sections[number]

        def ends() -> np.ndarray:  # what is written of a damaged shard would outlive the damage
            return self._stream.arrays(number).ends[: section.entries]

        return packing.load(
            self._cache, section.shard, self._spec, self._length, ends, section.tokens, shift=self._shift
        )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept where there is room for so many: the longer one is cut until both
    are equally long, then both."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)
