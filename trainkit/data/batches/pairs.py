"""Examples of two sequences each: a chosen and a rejected answer, or a source and its target."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans, PackingCounts
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.cache.stream import Stream
from trainkit.recipe.sections.data import Data, Pad
from trainkit.recipe.sections.document_spec import DocumentSpec


def pair_examples(stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = True) -> Pairs:
    """Return the examples of preference documents."""
    return Pairs(stream, document, data.encoding, data.positions, cache, shifted=shifted)


def source_target_examples(
    stream: Stream, document: DocumentSpec, data: Data, cache: Path, *, shifted: bool = False
) -> SourceTargets:
    """Return the examples of sources with their targets. The tokens of the target are learned, whatever the task."""
    return SourceTargets(stream, document, data.encoding, data.positions, cache, shifted=False)


class Pairs(SpanExamples):
    """Example i has two spans: its chosen and its rejected sequence.

    A pair is left out where it is too short or too long for the encoding, or where nothing that is learned is left of
    one of its sequences that are to be learned."""

    #: Which of the two sequences are learned.
    learned: ClassVar[slice] = slice(0, 2)

    def read(self, which: np.ndarray, length: int) -> Batch:
        shape, dtype = (len(which), 2, length), self._stream.dtype
        arrays = ("tokens", "targets", "weights") if self._shift else ("tokens", "weights")
        batch = {name: np.zeros(shape, np.float32 if name == "weights" else dtype) for name in arrays}
        batch |= {"filled": np.zeros(shape[:2], np.int32), "example": which.astype(np.uint32)}
        if self._labels is not None:
            batch["labels"] = np.zeros(len(which), self._labels.dtype)
        for row, example in enumerate(which.tolist()):
            for side, span in enumerate(self._spans(example)):
                self._fill({name: batch[name][row, side, : span.length] for name in arrays}, 1, span)
                batch["filled"][row, side] = span.length
                if self._labels is not None:
                    batch["labels"][row] = self._stream.arrays(span.section).label_at(span.start)
        return batch

    def sizes(self) -> np.ndarray:
        """Return the positions that each of the two sequences takes, (examples, 2)."""
        self._frame()
        return np.concatenate([np.zeros((0, 2), np.int64), *(one.lengths.reshape(-1, 2) for one in self._frames)])

    def _spans_of(self, number: int) -> PackedSpans:
        section, arrays = self._stream.sections[number], self._stream.arrays(number)
        assert arrays.marks is not None and isinstance(self._spec, Pad)
        ends = arrays.ends[: section.entries]
        return pair_spans(self._spec, self._length, ends, arrays.marks, shift=self._shift, learned=self.learned)


class SourceTargets(Pairs):
    """Example i has two spans: its source, which is not learned, and its target, which is."""

    learned = slice(1, 2)


def pair_spans(
    spec: Pad, length: int, ends: np.ndarray, marks: np.ndarray, *, shift: int = 1, learned: slice = Pairs.learned
) -> PackedSpans:
    """Return two spans for each pair that is used, of the documents of a shard.

    Args:
        ends: where each document ends, (documents,).
        marks: of each token, whether it is learned, and whether it is of the second sequence of its document.
        shift: 1 where targets are the next tokens, so that the first token of a sequence is no target; else 0.
        learned: which of the two sequences must have something that is learned.
    """
    ends = ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    borders = ends - (_sums(marks & SECOND > 0, ends) - _sums(marks & SECOND > 0, starts))
    begins_N2 = np.stack([starts, borders], 1)
    whole_N2 = np.stack([borders - starts, ends - borders], 1) - shift
    kept_N2 = np.minimum(whole_N2, length)
    is_learned = marks & LEARNED > 0
    learned_N2 = _sums(is_learned, begins_N2 + shift + np.maximum(kept_N2, 0)) - _sums(is_learned, begins_N2 + shift)
    used = (whole_N2 >= spec.min_length).all(1) & (learned_N2[:, learned] > 0).all(1)
    too_long = (whole_N2 > length).any(1)
    if spec.too_long == "drop":
        used &= ~too_long
    lengths_N2 = kept_N2[used]
    targets = int(np.maximum(whole_N2, 0).sum())
    counts = PackingCounts(
        documents=len(ends),
        dropped=int((~used).sum()),
        truncated=int((too_long & used).sum()),
        lost=targets - int(lengths_N2.sum()),
        targets=targets,
    )
    offsets = np.arange(len(lengths_N2) + 1) * 2
    contexts = np.zeros(lengths_N2.size, np.int64)
    return PackedSpans(offsets, begins_N2[used].ravel(), lengths_N2.ravel(), contexts, counts)


def _sums(flags: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return how many flags are set before each of some places."""
    return np.concatenate([[0], np.cumsum(flags)])[before]
