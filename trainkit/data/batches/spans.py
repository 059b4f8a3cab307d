"""Examples of the spans of documents that `packing` finds in each shard: windows, packed rows and padded ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainkit.data.batches import packing
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.cache.stream import SourceSpan, Stream
from trainkit.data.documents.labels import labels_of, no_label
from trainkit.recipe.sections.data import Encoding, Pack
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
        self._shift = int(shifted)
        self._frames: list[PackedSpans] = []
        self._firsts = np.zeros(1, np.int64)

    def wait(self, count: int | None) -> int | None:
        while True:
            # looked at before the sections: what is added meanwhile is taken in by the next round
            complete, tokens = self._stream.complete, self._stream.tokens
            self._frame()
            if complete:
                return int(self._firsts[-1])
            if count is not None and self._firsts[-1] >= count:
                return None
            self._stream.wait(None if count is None else tokens + 1)

    @property
    def counts(self) -> packing.PackingCounts:
        """What became of the documents so far."""
        return packing.PackingCounts(*(sum(column) for column in zip(*(f.counts for f in self._frames), strict=True)))

    def read(self, which: np.ndarray, length: int) -> Batch:
        batch = self._empty_batch(which, length)
        of_row = {"example", "filled"} | (set() if self._token_labels else {"labels"})
        for row, example in enumerate(which.tolist()):
            filled = 0
            for number, span in enumerate(self._spans(example), 1):
                place = slice(filled, filled + span.length)
                places = {name: array[row, place] for name, array in batch.items() if name not in of_row}
                self._fill(places, number, span)
                if "labels" in batch and not self._token_labels:
                    batch["labels"][row] = self._stream.arrays(span.section).label_at(span.start)
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
        arrays, shift = self._stream.arrays(span.section), self._shift
        tokens = slice(span.start, span.start + span.length)
        place["tokens"][:] = arrays.tokens[tokens]
        if shift:
            place["targets"][:] = arrays.tokens[span.start + 1 : span.start + span.length + 1]
        counted = slice(span.start + shift + span.context, span.start + shift + span.length)
        place["weights"][span.context :] = 1 if arrays.marks is None else arrays.marks[counted] & LEARNED
        if "segments" in place:
            place["segments"][:] = number
            place["positions"][:] = np.arange(span.length)
        if "second" in place and arrays.marks is not None:
            place["second"][:] = (arrays.marks[tokens] & SECOND) // SECOND
        if self._token_labels and arrays.labels is not None:
            place["labels"][span.context :] = arrays.labels[tokens][span.context :]

    def sizes(self) -> np.ndarray:
        self._frame()
        return np.concatenate([np.zeros(0, np.int64), *(one.longest for one in self._frames)])

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        for section, start, count, _ in self._spans(which):
            yield tuple(self._stream.places(self._stream.first_of(section) + start, count + self._shift))

    def _spans(self, example: int) -> Iterator[DocumentSpan]:
        section = int(np.searchsorted(self._firsts, example, side="right")) - 1
        frame = self._frames[section]
        number = example - int(self._firsts[section])
        for span in range(int(frame.offsets[number]), int(frame.offsets[number + 1])):
            yield DocumentSpan(section, int(frame.starts[span]), int(frame.lengths[span]), int(frame.contexts[span]))

    def _frame(self) -> None:
        """Take in the sections that are new."""
        for number in range(len(self._frames), len(self._stream.sections)):
            made = self._spans_of(number)
            self._frames.append(made)
            self._firsts = np.append(self._firsts, self._firsts[-1] + len(made))

    def _spans_of(self, number: int) -> PackedSpans:
        """Return the spans of the examples of a section."""
        section = self._stream.sections[number]
        ends = self._stream.arrays(number).ends[: section.entries]
        return packing.load(
            self._cache, section.shard, self._spec, self._length, ends, section.tokens, shift=self._shift
        )
