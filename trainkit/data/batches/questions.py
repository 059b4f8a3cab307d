"""Examples of questions: windows over the context, each after the question and before the token that ends a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans, PackingCounts
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.arrays import Arrays
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.shards import SECOND
from trainkit.data.cache.stream import Stream
from trainkit.data.documents.question import FIRST_ANSWER, TARGET
from trainkit.recipe.sections.data import Data, Windows
from trainkit.recipe.sections.document_spec import DocumentSpec


def question_examples(
    stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = False
) -> QuestionWindows:
    """Return the examples of questions, whose targets are never the next tokens."""
    return QuestionWindows(stream, document, data.encoding, data.positions, cache, shifted=False)


class QuestionWindows(SpanExamples):
    """Example i has three spans: the question with the special tokens around it, a part of the context, and the token
    that ends a text.

    In a batch, `labels` are bits: `TARGET` of the tokens of the first answer or, in a window that does not hold all of
    it, of the first token; `FIRST_ANSWER` and so on of the tokens of each answer. They are 0 in the rest of the
    context, and -1 elsewhere. `weights` are 1 at the target."""

    def read(self, which: np.ndarray, length: int) -> Batch:
        batch = super().read(which, length)
        batch["weights"][:] = 0
        for row, example in enumerate(which.tolist()):
            before, part, _ = self._spans(example)
            labels_T = batch["labels"][row]
            context = slice(before.length, before.length + part.length)
            labels_T[context] = np.maximum(labels_T[context], 0)
            target_T = _in_answer(labels_T)
            whole = _tokens_of_answer(self._stream.arrays(before.section), before.start)
            if not whole or target_T.sum() < whole:
                target_T = np.arange(length) == 0
            labels_T[target_T] = np.maximum(labels_T[target_T], 0) | TARGET
            batch["weights"][row, target_T] = 1
        return batch

    def spans(self, which: int) -> Iterator[tuple[SourceSpan, ...]]:
        """Yield where an example comes from, as one span; its parts that lie together are one part."""
        parts: list[SourceSpan] = []
        for part in (part for places in super().spans(which) for part in places):
            if parts and parts[-1].end == part.first:
                parts[-1] = replace(parts[-1], end=part.end)
            else:
                parts.append(part)
        yield tuple(parts)

    def too_long(self) -> SourceSpan | None:
        """Return the first question that leaves no room for the context; None if all leave some."""
        for number in range(len(self._stream.sections)):
            places = self._places(number)
            tight = np.flatnonzero(places.room < 1)
            if len(tight):
                first = self._stream.first_of(number) + int(places.starts[tight[0]])
                return next(self._stream.places(first, int((places.borders - places.starts)[tight[0]])))
        return None

    def count_answers(self) -> tuple[int, int]:
        """Return how many questions have an answer, and of how many it is whole in a window."""
        with_answer = found = 0
        for number in range(len(self._stream.sections)):
            places, spans = self._places(number), self._spans_of(number)
            arrays = self._stream.arrays(number)
            assert arrays.labels is not None
            before = np.concatenate([[0], np.cumsum(_in_answer(arrays.labels))])
            whole = before[places.ends] - before[places.borders]
            with_answer += int((whole > 0).sum())
            begins, lengths = spans.starts[1::3], spans.lengths[1::3]
            document = np.searchsorted(places.ends, begins, side="right")
            held = (before[begins + lengths] - before[begins] == whole[document]) & (whole[document] > 0)
            found += len(np.unique(document[held]))
        return with_answer, found

    def _spans_of(self, number: int) -> PackedSpans:
        assert isinstance(self._spec, Windows)
        return question_spans(self._spec, self._places(number))

    def _places(self, number: int) -> QuestionPlaces:
        section, arrays = self._stream.sections[number], self._stream.arrays(number)
        assert arrays.marks is not None
        ends = arrays.ends[: section.entries].astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        seconds = np.concatenate([[0], np.cumsum(arrays.marks & SECOND > 0)])
        borders = ends - (seconds[ends] - seconds[starts])
        closing = int(self._spec.eos)
        room = self._length - (borders - starts) - closing
        return QuestionPlaces(starts, borders, ends - closing, ends, room)


class QuestionPlaces(NamedTuple):
    """Where the parts of the documents of a shard are, in tokens; all int64 (documents,)."""

    starts: np.ndarray
    borders: np.ndarray
    """Where contexts begin."""
    closings: np.ndarray
    """Where contexts end, before the token that ends a text."""
    ends: np.ndarray
    room: np.ndarray
    """How many tokens of its context a window has."""


def question_spans(spec: Windows, places: QuestionPlaces) -> PackedSpans:
    """Return three spans for each window of the documents of a shard: before the context, a part of it, and after it.

    Window k begins at token k * stride of the context, and at most where window k - 1 ends. A question that leaves no
    room has no window.
    """
    starts, borders, closings, ends, room = places
    sizes, fits = closings - borders, (room > 0) & (closings > borders)
    whole = np.maximum(room, 1)
    stride = whole if spec.stride is None else np.minimum(spec.stride, whole)
    many = np.where(fits, np.maximum(1, -(-(sizes - whole) // stride) + 1), 0)
    document = np.repeat(np.arange(len(sizes)), many)
    number = np.arange(len(document)) - np.repeat(np.cumsum(many) - many, many)
    begin = number * stride[document]
    lengths = np.minimum(whole[document], sizes[document] - begin)
    new = lengths - np.where(number > 0, (whole - stride)[document], 0)
    keep = new >= spec.min_length
    document, begin, lengths = document[keep], begin[keep], lengths[keep]
    parts_N3 = np.stack([starts[document], borders[document] + begin, closings[document]], 1)
    lengths_N3 = np.stack([(borders - starts)[document], lengths, (ends - closings)[document]], 1)
    used = len(np.unique(document))
    lost = int(sizes.sum() - new[keep].sum())
    counts = PackingCounts(len(sizes), len(sizes) - used, 0, lost, int(sizes.sum()))
    offsets, contexts = np.arange(len(document) + 1) * 3, np.zeros(3 * len(document), np.int64)
    return PackedSpans(offsets, parts_N3.ravel(), lengths_N3.ravel(), contexts, counts)


def _tokens_of_answer(arrays: Arrays, start: int) -> int:
    """Return how many tokens the first answer of the document that begins at `start` has."""
    assert arrays.labels is not None
    end = int(arrays.ends[np.searchsorted(arrays.ends, start, side="right")])
    return int(_in_answer(arrays.labels[start:end]).sum())


def _in_answer(labels: np.ndarray) -> np.ndarray:
    """Return which tokens with these labels are in the first answer, bool."""
    return (labels > 0) & (labels & FIRST_ANSWER > 0)
