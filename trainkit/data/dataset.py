"""Batches by their number: pure functions of the recipe's seed, the tokens and the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainkit.data.cache import Cache
from trainkit.data.layout import Batch, next_token_batch
from trainkit.data.order import MIXTURE_BLOCK, Mixture, Order
from trainkit.data.stream import Stream
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe


class TrainSet:
    """The training batches of a recipe.

    A stream of tokens is cut into examples of T targets. Example i has the tokens from i * T to i * T + T, its last
    being the first of the next, so that every token but the first is a target once an epoch. The last one is padded.

    Without weights all sources are one stream. With weights each source has an order and epochs of its own, and of
    every 1024 consecutive examples each has exactly its share.

    Attributes:
        examples: in one epoch. With weights: as many as all sources hold together, though in that time some are seen
            more, and some less, than once.
    """

    def __init__(self, cache: Cache, recipe: Recipe) -> None:
        """Raises TrainkitError where a source does not fill one example, or its weight is too small to be met."""
        data, seed = recipe.data, recipe.run.seed
        self._length, self._batch_size = data.sequence_length, recipe.train.batch_size
        weights = [source.weight for source in data.train if source.weight is not None]
        self._streams = cache.sources if weights else (cache.train,)
        for number, stream in enumerate(self._streams):
            _check_fills_an_example(stream, self._length, f"data.train.{number}" if weights else "data.train")
        counts = [stream.examples(self._length) for stream in self._streams]
        self.examples = sum(counts)
        self._mixture = Mixture(weights, seed=seed) if weights else None
        if self._mixture:
            _check_shares(weights, self._mixture.quotas)
        self._orders = [
            Order(count, shuffle=data.shuffle, seed=seed, name=f"source {number}")
            for number, count in enumerate(counts)
        ]

    def batch(self, step: int) -> Batch:
        """The batch of the update from `step` to `step` + 1, as `layout` says. Nothing else decides what is in it."""
        index = np.arange(step * self._batch_size, (step + 1) * self._batch_size)
        rows = np.zeros((len(index), self._length + 1), self._streams[0].dtype)
        weights = np.ones((len(index), self._length), np.float32)
        if self._mixture is None:
            _fill(self._streams[0], self._orders[0](index), list(rows), weights)
            return next_token_batch(rows, weights)
        sources, ranks = self._mixture(index)
        for source in np.unique(sources).tolist():
            here = np.flatnonzero(sources == source)
            examples = self._orders[source](ranks[here])
            part = weights[here]
            _fill(self._streams[source], examples, [rows[i] for i in here.tolist()], part)
            weights[here] = part
        return next_token_batch(rows, weights)


class EvalSet:
    """All examples of a set once, in order; the last batch is filled up with rows of weight 0.

    Attributes:
        tokens, bytes: of the whole set, also where `max_batches` leaves some of it out: their ratio turns a loss per
            token into bits per byte.
    """

    def __init__(
        self, stream: Stream, *, sequence_length: int, batch_size: int, max_batches: int | None = None
    ) -> None:
        """Raises TrainkitError where there are fewer than two tokens: nothing can be predicted then."""
        if stream.tokens < 2:
            raise TrainkitError("a validation set holds no text", where="data.validation")
        self._stream, self._length, self._batch_size = stream, sequence_length, batch_size
        self._examples = stream.examples(sequence_length)
        batches = -(-self._examples // batch_size)
        self._batches = min(batches, max_batches) if max_batches else batches
        self.tokens, self.bytes = stream.tokens, stream.bytes

    def __len__(self) -> int:
        return self._batches

    def batch(self, index: int, /) -> Batch:
        """Batch 0 … len - 1; all of one shape."""
        first = index * self._batch_size
        examples = np.arange(first, min(first + self._batch_size, self._examples))
        rows = np.zeros((self._batch_size, self._length + 1), self._stream.dtype)
        weights = np.zeros((self._batch_size, self._length), np.float32)
        weights[: len(examples)] = 1
        _fill(self._stream, examples, list(rows[: len(examples)]), weights)
        return next_token_batch(rows, weights)


def _fill(stream: Stream, examples: np.ndarray, rows: Sequence[np.ndarray], weights: np.ndarray) -> None:
    """Read examples into `rows`, each (T + 1,); where one is short, the rest is left, and its weights become 0."""
    width = len(rows[0])
    starts = examples * (width - 1)
    stream.read_into(rows, starts)
    for row in np.flatnonzero(starts + width > stream.tokens).tolist():
        weights[row, stream.tokens - int(starts[row]) - 1 :] = 0


def _check_fills_an_example(stream: Stream, length: int, where: str) -> None:
    if stream.tokens < length + 1:
        raise TrainkitError(
            f"{stream.tokens:,} tokens do not fill one example: sequence_length = {length} needs {length + 1:,}",
            where=where,
            hint=f"give more text, or data.sequence_length of at most {stream.tokens - 1}"
            if stream.tokens > 1
            else "give more text",
        )


def _check_shares(weights: Sequence[float], quotas: np.ndarray) -> None:
    for number, (weight, quota) in enumerate(zip(weights, quotas.tolist(), strict=True)):
        if not quota:
            raise TrainkitError(
                f"weight = {weight} of {sum(weights):g} is too small: less than one example in {MIXTURE_BLOCK}",
                where=f"data.train.{number}.weight",
                hint=f"at least {sum(weights) / MIXTURE_BLOCK:.3g}, or leave the source out",
            )
