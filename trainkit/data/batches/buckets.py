"""Batches of examples of about one length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainkit.data.batches.order import ExampleOrder, Permutation


class Buckets:
    """Which examples make the batch of a step: all of one bucket, the buckets in an order drawn again each epoch.

    A pure function of (sizes of the examples, seed, step). The last batch of a bucket may be short.

    Attributes:
        batches: in one epoch.
        occurring: the lengths of buckets that hold any example.
    """

    def __init__(
        self, sizes: np.ndarray, lengths: Sequence[int], batch_size: int, *, shuffled: bool, seed: int
    ) -> None:
        """`sizes` are the positions of each example, `lengths` those of each bucket, rising."""
        bucket = np.searchsorted(lengths, sizes)
        self._members = [np.flatnonzero(bucket == number) for number in range(len(lengths))]
        self._lengths, self._batch_size, self._shuffled, self._seed = lengths, batch_size, shuffled, seed
        counts = [-(-len(members) // batch_size) for members in self._members]
        self._firsts = np.cumsum([0, *counts])
        self.batches = int(self._firsts[-1])
        self.occurring = [length for length, count in zip(lengths, counts, strict=True) if count]
        self._order = ExampleOrder(self.batches, shuffle="full" if shuffled else False, seed=seed, name="buckets")

    def __call__(self, step: int) -> tuple[np.ndarray, int]:
        """The examples of the batch of a step, and the length to which they are padded."""
        batch = int(self._order(np.array([step]))[0])
        number = int(np.searchsorted(self._firsts, batch, side="right")) - 1
        members = self._members[number]
        first = (batch - int(self._firsts[number])) * self._batch_size
        places = np.arange(first, min(first + self._batch_size, len(members)))
        if self._shuffled:
            places = Permutation(len(members), self._seed, "bucket", number, step // self.batches)(places)
        return members[places], self._lengths[number]
