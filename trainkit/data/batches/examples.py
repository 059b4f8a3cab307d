"""Examples by their number: from the tokens of a stream to rows of a batch, one class for each encoding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from trainkit.data.batches import packing
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.cache.stream import SourceSpan, Stream
from trainkit.recipe.sections.data import Concatenate, Data, Encoding, Pack, Pad
from trainkit.recipe.sections.document import DocumentSpec
from trainkit.recipe.sections.source import Source, document_of
from trainkit.recipe.spec import implementation_of, import_named


class Examples(Protocol):
    """The examples of a stream, in their order as stored."""

    def wait(self, count: int | None) -> int | None:
        """Until so many can be read, or (also where it is None) all: how many there are in all, None while that is
        not known. Raises what has ended the stream before that."""

    def read(self, which: np.ndarray, length: int) -> Batch:
        """Some of them, (n,), each a row of `length` positions; the batch is as `layout` says."""

    def sizes(self) -> np.ndarray:
        """Positions that each takes, (examples,), once all are there; of two sequences those of both, (examples, 2)."""

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        """Where one comes from: for each of its spans the documents. A span of n tokens takes n positions, or n - 1
        where targets are the next tokens."""


def examples_of(stream: Stream, source: Source, data: Data, cache: Path, *, shifted: bool = True) -> Examples:
    """Return the examples of one source, or of several that are one stream and have documents of one kind.

    With `shifted`, the targets are the next tokens; without, a task makes its targets of the tokens themselves.
    """
    document = document_of(source)
    make = text_examples if document is None else import_named(document.examples)
    examples: Examples = make(stream, document, data, cache, shifted=shifted)
    return examples


def text_examples(
    stream: Stream, document: DocumentSpec | None, data: Data, cache: Path, *, shifted: bool = True
) -> Chunks | SpanExamples:
    """Return the examples of texts, as the recipe's encoding divides them."""
    if isinstance(data.encoding, Concatenate):
        return Chunks(stream, data.positions, data.encoding, shifted=shifted)
    labelled = document is not None and document.labelled
    return SpanExamples(stream, data.encoding, data.positions, cache, labelled=labelled, shifted=shifted)


def record_examples(
    stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = True
) -> Records:
    """Return the examples of documents that are stored as a fixed number of bytes each."""
    return Records(stream, document)


class Chunks:
    """Example i has the T tokens from i * T on. Where targets are the next tokens it has one more, the first of the
    next example, so that every token but the first is a target once. The last example is padded."""

    def __init__(self, stream: Stream, length: int, spec: Concatenate, *, shifted: bool = True) -> None:
        self._stream, self._length, self._spec = stream, length, spec
        self._shift = int(shifted)
        self._early = shifted and spec.eos and not stream.begins
        """Whether a separate document begins with the token that ends the one before."""

    def wait(self, count: int | None) -> int | None:
        self._stream.wait(None if count is None else count * self._length + self._shift)
        return self._count() if self._stream.complete else None

    def read(self, which: np.ndarray, length: int) -> Batch:
        starts = which * self._length
        rows = self._stream.windows(starts, self._length + self._shift)
        batch = {"tokens": rows[:, : self._length]}
        batch |= {"targets": rows[:, 1:]} if self._shift else {"example": which.astype(np.uint32)}
        batch["weights"] = self._weights(starts)
        if self._spec.separate:
            self._separate(starts, batch)
        else:
            batch["filled"] = np.clip(self._stream.tokens - starts, 0, self._length).astype(np.int32)
        return batch

    def sizes(self) -> np.ndarray:
        return np.full(self._count(), self._length)

    def targets(self) -> int:
        """Of all that are there: every token but the first, or but the first of each document where documents are
        separate and do not begin with the end of the one before. Every token where targets are not the next ones."""
        tokens = self._stream.tokens
        if not self._shift:
            return tokens
        if not self._spec.separate or self._early:
            return max(0, tokens - 1)
        ends = np.unique(self._stream.borders(0, tokens))
        return max(0, tokens - 1 - int(np.count_nonzero((ends > 0) & (ends < tokens))))

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        yield tuple(self._stream.places(which * self._length, self._length + self._shift))

    def _count(self) -> int:
        return self._stream.examples(self._length, shift=self._shift)

    def _weights(self, starts: np.ndarray) -> np.ndarray:
        width = self._length + self._shift
        whole = not len(starts) or int(starts.max()) + width <= self._stream.tokens
        if self._stream.marked:
            learned = self._stream.marks(starts, width)[:, self._shift :] & LEARNED
            weights = learned.astype(np.float32)
        elif whole:
            return _ones(len(starts), self._length)
        else:
            weights = np.ones((len(starts), self._length), np.float32)
        for row in [] if whole else np.flatnonzero(starts + width > self._stream.tokens).tolist():
            weights[row, max(0, self._stream.tokens - int(starts[row]) - self._shift) :] = 0
        return weights

    def _separate(self, starts: np.ndarray, batch: Batch) -> None:
        """Add `segments` and `positions`. Where documents end with a token and begin with none, the end of one is the
        begin of the next: it is predicted by its own document, and predicts the next one's first token by itself."""
        shape = (len(starts), self._length)
        segments, positions = np.ones(shape, np.int32), np.empty(shape, np.int32)
        weights = batch["weights"].copy()
        for row, start in enumerate(starts.tolist()):
            ends = self._stream.borders(start, self._length + self._shift)
            begins = ends - self._early
            begins = begins[(begins > 0) & (begins < self._length)]
            segments[row, begins] += 1
            np.cumsum(segments[row] - 1, out=segments[row])
            segments[row] += 1
            since = np.zeros(self._length, np.int32)
            since[begins] = begins
            positions[row] = np.arange(self._length) - np.maximum.accumulate(since)
            if self._shift and not self._early:
                weights[row, ends[ends <= self._length] - 1] = 0
            segments[row, max(0, self._stream.tokens - start) :] = 0
        batch |= {"weights": weights, "segments": segments, "positions": positions}


class SpanExamples:
    """Examples of the spans of documents that `packing` finds in each shard."""

    def __init__(
        self, stream: Stream, spec: Encoding, length: int, cache: Path, *, labelled: bool, shifted: bool = True
    ) -> None:
        self._stream, self._spec, self._length, self._cache = stream, spec, length, cache
        self._labelled, self._shift = labelled, int(shifted)
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
        shape = (len(which), length)
        shift = self._shift
        batch = {"tokens": np.zeros(shape, self._stream.dtype)}
        batch |= {"targets": np.zeros(shape, self._stream.dtype)} if shift else {"example": which.astype(np.uint32)}
        batch["weights"] = np.zeros(shape, np.float32)
        if isinstance(self._spec, Pack):
            batch |= {"segments": np.zeros(shape, np.int32), "positions": np.zeros(shape, np.int32)}
        else:
            batch["filled"] = np.zeros(len(which), np.int32)
        if self._labelled:
            batch |= {"labels": np.full(len(which), -1, np.int32), "second": np.zeros(shape, np.uint8)}
        for row, example in enumerate(which.tolist()):
            filled = 0
            for number, (section, start, count, context) in enumerate(self._spans(example), 1):
                arrays = self._stream.arrays(section)
                here, place = slice(start, start + count), slice(filled, filled + count)
                batch["tokens"][row, place] = arrays.tokens[here]
                if shift:
                    batch["targets"][row, place] = arrays.tokens[start + 1 : start + count + 1]
                counted = slice(start + shift + context, start + shift + count)
                learned = 1 if arrays.marks is None else arrays.marks[counted] & LEARNED
                batch["weights"][row, filled + context : filled + count] = learned
                if isinstance(self._spec, Pack):
                    batch["segments"][row, place] = number
                    batch["positions"][row, place] = np.arange(count)
                if self._labelled and arrays.marks is not None:
                    document = int(np.searchsorted(arrays.ends, start, side="right"))
                    batch["labels"][row] = arrays.documents["label"][document]
                    batch["second"][row, place] = (arrays.marks[here] & SECOND) // SECOND
                filled += count
            if "filled" in batch:
                batch["filled"][row] = filled
        return batch

    def sizes(self) -> np.ndarray:
        self._frame()
        return np.concatenate([np.zeros(0, np.int64), *(one.longest for one in self._frames)])

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        for section, start, count, _ in self._spans(which):
            yield tuple(self._stream.places(self._stream.first_of(section) + start, count + self._shift))

    def _spans(self, example: int) -> Iterator[tuple[int, int, int, int]]:
        """(section, start in it, positions, positions that are context) of each span."""
        section = int(np.searchsorted(self._firsts, example, side="right")) - 1
        frame = self._frames[section]
        number = example - int(self._firsts[section])
        for span in range(int(frame.offsets[number]), int(frame.offsets[number + 1])):
            yield section, int(frame.starts[span]), int(frame.lengths[span]), int(frame.contexts[span])

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


class Records:
    """Example i is document i; all are stored as the same number of bytes.

    The document's `implementation` has `width(document)`, that number, and `decode(document, rows_NW)`, which makes
    named arrays of the bytes of N documents, uint8 (N, W).
    """

    def __init__(self, stream: Stream, document: DocumentSpec) -> None:
        self._stream, self._document = stream, document
        self._implementation = implementation_of(document)
        self._width: int = self._implementation.width(document)

    def wait(self, count: int | None) -> int | None:
        self._stream.wait(None if count is None else count * self._width)
        return self._stream.tokens // self._width if self._stream.complete else None

    def read(self, which: np.ndarray, length: int) -> Batch:
        starts = which * self._width
        batch: Batch = self._implementation.decode(self._document, self._stream.windows(starts, self._width))
        if self._document.labelled:
            labels = [next(self._stream.places(start, 1)).label for start in starts.tolist()]
            batch["labels"] = np.array(labels, np.int32)
        return batch

    def sizes(self) -> np.ndarray:
        return np.ones(self._stream.tokens // self._width, np.int64)

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        yield tuple(self._stream.places(which * self._width, self._width))


@lru_cache(maxsize=4)
def _ones(rows: int, length: int) -> np.ndarray:
    """Made once: the batches of ordinary text have all the same weights."""
    weights = np.ones((rows, length), np.float32)
    weights.flags.writeable = False
    return weights


def read_rows(examples: Examples, stream: Stream, which: np.ndarray, length: int) -> Batch:
    """Return some examples of a stream, with the stream's columns."""
    return examples.read(which, length) | {name: column[which] for name, column in stream.columns.items()}


def longest(sizes: np.ndarray) -> np.ndarray:
    """Return the positions of the longest sequence of each example, from `Examples.sizes`."""
    return sizes if sizes.ndim == 1 else sizes.max(1)


def padded(examples: Examples, stream: Stream, which: np.ndarray, rows: int, length: int) -> Batch:
    """A batch of `rows` rows, those after the examples empty."""
    batch = read_rows(examples, stream, which, length)
    missing = rows - len(which)
    if not missing:
        return batch
    return {name: np.concatenate([a, np.zeros((missing, *a.shape[1:]), a.dtype)]) for name, a in batch.items()}


def lengths_of(spec: Encoding, length: int) -> tuple[int, ...]:
    """The lengths that batches may have, rising."""
    return tuple(sorted({*spec.buckets, length})) if isinstance(spec, Pad) else (length,)
