"""What is evaluated on: all of a set, in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainkit.data.examples import examples_of, lengths_of, padded
from trainkit.data.layout import Batch
from trainkit.data.stream import Stream
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.data import Data
from trainkit.recipe.source import Source


class EvalSet:
    """All examples of a set once, in order; the last batch is filled up with rows of weight 0.

    Attributes:
        tokens, bytes: of the whole set, also where `max_batches` leaves some of it out: their ratio turns a loss per
            token into bits per byte. `bytes` is 0 where not every token is a target once.
    """

    def __init__(
        self,
        stream: Stream,
        source: Source,
        data: Data,
        cache: Path,
        *,
        batch_size: int,
        max_batches: int | None = None,
        name: str = "validation",
    ) -> None:
        self._examples = examples_of(stream, source, data, cache)
        self._stream, self._data, self._batch_size, self._name = stream, data, batch_size, name
        self._max_batches = max_batches
        self._lengths = lengths_of(data.encoding, data.sequence_length)
        self._rows: list[tuple[np.ndarray, int]] | None = None

    @property
    def tokens(self) -> int:
        return self._stream.tokens

    @property
    def bytes(self) -> int:
        return self._stream.bytes if self._data.encoding.type == "concatenate" and not self._stream.marked else 0

    def __len__(self) -> int:
        """Waits until the set is there. Raises TrainkitError where it makes no example."""
        return len(self._plan())

    def batch(self, index: int, /) -> Batch:
        """Batch 0 … len - 1; all of one length have one shape."""
        which, length = self._plan()[index]
        return padded(self._examples, which, self._batch_size, length)

    def _plan(self) -> list[tuple[np.ndarray, int]]:
        """(examples, length) of each batch."""
        if self._rows is None:
            count = self._examples.wait(None)
            assert count is not None
            if not count or self._stream.tokens < 2:
                where = f"data.validation ({self._name})"
                raise TrainkitError("a validation set makes no example: it holds no text", where=where)
            groups = [(np.arange(count), self._lengths[-1])]
            if len(self._lengths) > 1:
                bucket = np.searchsorted(self._lengths, self._examples.sizes())
                groups = [(np.flatnonzero(bucket == i), length) for i, length in enumerate(self._lengths)]
            size = self._batch_size
            self._rows = [(g[i : i + size], length) for g, length in groups for i in range(0, len(g), size)]
            self._rows = self._rows[: self._max_batches]
        return self._rows


def validation_sources(recipe: Recipe) -> list[Source]:
    """A source of each validation set, in the order of `Cache.validation`."""
    held_out = recipe.data.train[:1] if recipe.data.held_out else ()
    return [*recipe.data.validation, *held_out]
