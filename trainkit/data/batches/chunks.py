"""Examples of concatenated documents: each is the next T tokens, whichever documents they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from trainkit.data.batches.layout import Batch
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.shards import LEARNED
from trainkit.data.cache.stream import Stream
from trainkit.recipe.sections.data import Concatenate


class Chunks:
    """Example i has the T tokens from i * T on. If targets are the next tokens it has one more, the first of the next
    example, so that every token but the first is a target once. The last example is padded."""

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
        """Return the number of targets in all tokens so far.

        That is every token but the first or, if documents are separate and do not begin with the end of the one before,
        every token but the first of each document. It is every token if targets are not the next tokens.
        """
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


@lru_cache(maxsize=4)
def _ones(rows: int, length: int) -> np.ndarray:
    """Return ones. They are created once, because all batches of ordinary text have the same weights."""
    weights = np.ones((rows, length), np.float32)
    weights.flags.writeable = False
    return weights
