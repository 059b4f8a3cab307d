"""Examples by their number: from the tokens of a stream to rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from trainkit.data.batches.chunks import Chunks
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.stream import Stream
from trainkit.data.documents.labels import labels_of, no_label
from trainkit.recipe.sections.data import Concatenate, Data, Encoding, Pad
from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.sections.source import Source, document_of
from trainkit.recipe.spec import implementation_of, import_named


class Examples(Protocol):
    """The examples of a stream, in their order as stored."""

    def wait(self, count: int | None) -> int | None:
        """Wait until so many examples (None: all) can be read, and return how many there are in all; None while
        unknown.

        Raises the error that ended the stream before that.
        """

    def read(self, which: np.ndarray, length: int) -> Batch:
        """Return some examples, (n,), each as a row of `length` positions; the batch is as `layout` describes it."""

    def sizes(self) -> np.ndarray:
        """Return the positions that each example takes, (examples,), once all are there; for two sequences (examples,
        2)."""

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        """Return where an example comes from: for each of its spans the documents.

        A span of n tokens takes n positions, or n - 1 if targets are the next tokens.
        """


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
    return SpanExamples(stream, document, data.encoding, data.positions, cache, shifted=shifted)


def record_examples(
    stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = True
) -> Records:
    """Return the examples of documents that are stored as a fixed number of bytes each."""
    return Records(stream, document)


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
        if labels := labels_of(self._document):
            found = [self._stream.label_at(start) for start in starts.tolist()]
            batch["labels"] = np.array(found, labels.dtype).reshape(len(which), *labels.shape)
        return batch

    def sizes(self) -> np.ndarray:
        return np.ones(self._stream.tokens // self._width, np.int64)

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        yield tuple(self._stream.places(which * self._width, self._width))


def read_rows(examples: Examples, stream: Stream, which: np.ndarray, length: int) -> Batch:
    """Return some examples of a stream, with the stream's columns."""
    return examples.read(which, length) | {name: column[which] for name, column in stream.columns.items()}


def longest(sizes: np.ndarray) -> np.ndarray:
    """Return the positions of the longest sequence of each example, (examples,), from `Examples.sizes`."""
    return sizes if sizes.ndim == 1 else sizes.max(1)


def padded_batch(examples: Examples, stream: Stream, which: np.ndarray, rows: int, length: int) -> Batch:
    """Return a batch of `rows` rows, those after the examples empty: without labels, and all else is 0."""
    batch = read_rows(examples, stream, which, length)
    missing = rows - len(which)
    if not missing:
        return batch

    def empty(name: str, array: np.ndarray) -> np.ndarray:
        value = no_label(array.dtype) if name == "labels" else 0
        return np.full((missing, *array.shape[1:]), value, array.dtype)

    return {name: np.concatenate([array, empty(name, array)]) for name, array in batch.items()}


def cut(batch: Batch, length: int) -> Batch:
    """Return a batch of single sequences, (B, T), with every row as T / `length` rows of that length.

    A row that begins within a document begins with position 0, as every example does. The last parts of a padded row
    may be padding only. Labels of whole rows are left out.
    """
    rows, whole = batch["tokens"].shape
    parts = whole // length
    if parts == 1:
        return batch
    found = {name: array.reshape(rows * parts, length) for name, array in batch.items() if array.ndim == 2}
    if "positions" in found:
        found["positions"] = np.minimum(found["positions"], np.arange(length, dtype=np.int32))
    if "filled" in batch:
        before = np.arange(parts, dtype=np.int32) * length
        found["filled"] = np.clip(batch["filled"][:, None] - before, 0, length).reshape(-1)
    return found


def lengths_of(spec: Encoding, length: int) -> tuple[int, ...]:
    """Return the lengths that batches may have, in ascending order."""
    return tuple(sorted({*spec.buckets, length})) if isinstance(spec, Pad) else (length,)
