"""Examples of several sequences each: a chosen and a rejected answer, a source and its target, a query with the texts
to find and not to find."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from trainkit.data.batches.layout import Batch
from trainkit.data.batches.packing import PackedSpans, PackingCounts
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.shards import FURTHER, LEARNED, SECOND
from trainkit.data.cache.stream import Stream
from trainkit.errors import TrainkitError
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
    """Example i has a span for each of its sequences, such as the chosen and the rejected one.

    An example is left out where it is too short or too long for the encoding, or where nothing that is learned is left
    of one of its sequences that are to be learned."""

    #: Which of the sequences are learned.
    learned: ClassVar[slice] = slice(None)

    def read(self, which: np.ndarray, length: int) -> Batch:
        shape, dtype = (len(which), self._sequences, length), self._stream.dtype
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
        """Return the positions that each of the sequences takes, (examples, sequences)."""
        self._frame()
        lengths = np.concatenate([np.zeros(0, np.int64), *(one.lengths for one in self._frames)])
        return lengths.reshape(-1, self._sequences)

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
    """Return the spans of each document of a shard that is used, one for each of its S sequences.

    Args:
        ends: where each document ends, (documents,).
        marks: of each token, whether it is learned, whether it is of a sequence after the first of its document, and
            whether one after the second begins with it.
        shift: 1 where targets are the next tokens, so that the first token of a sequence is no target; else 0.
        learned: which of the sequences must have something that is learned.
    """
    ends = ends.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    borders = ends - (_sums(marks & SECOND > 0, ends) - _sums(marks & SECOND > 0, starts))
    further = np.flatnonzero(marks[: ends[-1] if len(ends) else 0] & FURTHER)
    if len(ends) and len(further) % len(ends):
        raise TrainkitError(
            "the cache has rows in which a text has no token, from an earlier version of trainkit",
            where="data.cache",
            hint="name another directory there: tokenising again names the row",
        )
    more_NS = further.reshape(len(ends), -1) if len(ends) else np.zeros((0, 0), np.int64)
    begins_NS = np.concatenate([starts[:, None], borders[:, None], more_NS], 1)
    whole_NS = np.diff(begins_NS, axis=1, append=ends[:, None]) - shift
    kept_NS = np.minimum(whole_NS, length)
    is_learned = marks & LEARNED > 0
    learned_NS = _sums(is_learned, begins_NS + shift + np.maximum(kept_NS, 0)) - _sums(is_learned, begins_NS + shift)
    used = (whole_NS >= spec.min_length).all(1) & (learned_NS[:, learned] > 0).all(1)
    too_long = (whole_NS > length).any(1)
    if spec.too_long == "drop":
        used &= ~too_long
    lengths_NS = kept_NS[used]
    targets = int(np.maximum(whole_NS, 0).sum())
    counts = PackingCounts(
        documents=len(ends),
        dropped=int((~used).sum()),
        truncated=int((too_long & used).sum()),
        lost=targets - int(lengths_NS.sum()),
        targets=targets,
    )
    offsets = np.arange(len(lengths_NS) + 1) * lengths_NS.shape[1]
    contexts = np.zeros(lengths_NS.size, np.int64)
    return PackedSpans(offsets, begins_NS[used].ravel(), lengths_NS.ravel(), contexts, counts)


def _sums(flags: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return how many flags are set before each of some places."""
    return np.concatenate([[0], np.cumsum(flags)])[before]
