"""Evaluation sets: all examples of a set in order, or a random sample of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trainkit.data.batches.chunks import Chunks
from trainkit.data.batches.examples import examples_of, lengths_of, longest, padded_batch
from trainkit.data.batches.layout import Batch
from trainkit.data.batches.order import Buckets
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.stream import Stream
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import Source


class EvalSet:
    """The batches of an evaluation: all examples of a set once, in order. Rows of weight 0 fill up the last batch.

    A set of more than `max_batches` batches is sampled. The sample depends only on the seed and the set: it is drawn
    from the whole set, and is the same at every step, after a resume and on any devices.
    """

    def __init__(
        self,
        stream: Stream,
        source: Source,
        data: Data,
        cache: Path,
        *,
        batch_size: int,
        at_once: int | None = None,
        max_batches: int | None = None,
        seed: int = 0,
        name: str = "data.validation (validation)",
        shifted: bool = True,
    ) -> None:
        """`at_once` divides `batch_size`: the number of rows in each part of a batch. What is evaluated depends only on
        `batch_size`, `max_batches` and `seed`. `name` is the place that errors name."""
        self._examples = examples_of(stream, source, data, cache, shifted=shifted)
        self._stream, self._data, self._name = stream, data, name
        self._batch_size, self._at_once = batch_size, at_once or batch_size
        self._max_batches, self._seed = max_batches, seed
        self._lengths = lengths_of(data.encoding, data.positions)
        self._rows: list[tuple[np.ndarray, int]] | None = None

    @property
    def targets(self) -> int:
        """Return how many tokens of the whole set are targets, even if `max_batches` leaves out some of it.

        It is 0 unless every token that can be a target is one exactly once.
        """
        examples = self._examples
        return examples.targets() if isinstance(examples, Chunks) and not self._stream.marked else 0

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole set's text: with `targets` they turn a loss per target into bits per byte. 0 if
        `targets` is."""
        return self._stream.bytes if self.targets else 0

    def ready(self, seconds: float) -> bool:
        """Return whether the set is complete, after waiting at most `seconds`."""
        self._stream.wait(None, seconds=seconds)
        return self._stream.complete

    def __len__(self) -> int:
        """Return the number of parts of batches. Waits for the set; raises TrainkitError if it makes no example."""
        return len(self._plan())

    def batch(self, index: int, /) -> Batch:
        """Return the part with this index, from 0 to `len - 1`. Parts of one length have one shape."""
        which, length = self._plan()[index]
        return padded_batch(self._examples, self._stream, which, self._at_once, length)

    def examples(self, index: int) -> np.ndarray:
        """Return which examples, as stored, a part has, (n,); the rows after them are padding."""
        return self._plan()[index][0]

    def places(self, index: int) -> list[list[SourceSpan]]:
        """Return where each example of a part comes from; for a packed one, every document in it, in order."""
        return [
            [place for places in self._examples.spans(int(which)) for place in places] for which in self.examples(index)
        ]

    def _plan(self) -> list[tuple[np.ndarray, int]]:
        """Return (examples, length) of each part."""
        if self._rows is None:
            count = self._examples.wait(None)
            assert count is not None
            if not count or self._stream.tokens < 2:
                hint = "add documents to it; what documents become: trainkit inspect RECIPE --first 3"
                raise TrainkitError("the set makes no example", where=self._name, hint=hint)
            sizes = longest(self._examples.sizes()) if len(self._lengths) > 1 else np.full(count, self._lengths[-1])
            batches = self._sample(sizes) or self._all(sizes)
            self._rows = [(some, length) for batch, length in batches for some in _cut(batch, self._at_once)]
        return self._rows

    def _all(self, sizes: np.ndarray) -> list[tuple[np.ndarray, int]]:
        """Return (examples, length) of each batch, in order, first all of one length, then of the next."""
        bucket = np.searchsorted(self._lengths, sizes)
        groups = [(np.flatnonzero(bucket == i), length) for i, length in enumerate(self._lengths)]
        return [(some, length) for group, length in groups for some in _cut(group, self._batch_size)]

    def _sample(self, sizes: np.ndarray) -> list[tuple[np.ndarray, int]] | None:
        """Return the same of `max_batches` batches; None if there are no more than these."""
        if self._max_batches is None:
            return None
        drawn = Buckets(sizes, self._lengths, self._batch_size, shuffled=True, seed=self._seed)
        if drawn.batches <= self._max_batches:
            return None
        batches = [drawn(number) for number in range(self._max_batches)]
        return sorted(((np.sort(some), length) for some, length in batches), key=lambda batch: int(batch[0][0]))


def _cut(examples: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the examples in groups of `size`; the last may be smaller."""
    return [examples[first : first + size] for first in range(0, len(examples), size)]


def evaluation_sets(cache: Path, streams: Mapping[str, Stream], recipe: Recipe, *, at_once: int) -> dict[str, EvalSet]:
    """Return the validation sets of a recipe by name, in its order, from the `streams` of its cache.

    `at_once` is the number of rows in a part of a batch. How large a batch is depends on the recipe alone, so that
    `evaluate.max_batches` means the same on every machine.
    """
    return {
        name: EvalSet(
            stream,
            source,
            recipe.data,
            cache,
            name=f"data.validation ({name})",
            batch_size=recipe.evaluate.batch_size or recipe.train.batch_size,
            at_once=at_once,
            max_batches=recipe.evaluate.max_batches,
            seed=recipe.run.seed,
            shifted=recipe.task.shifted,
        )
        for (name, stream), source in zip(streams.items(), validation_sources(recipe), strict=True)
    }


def validation_sources(recipe: Recipe) -> list[Source]:
    """Return one source of each validation set, in the order of `Cache.validation`."""
    held_out = recipe.data.train[:1] if recipe.data.held_out else ()
    return [*recipe.data.validation, *held_out]
