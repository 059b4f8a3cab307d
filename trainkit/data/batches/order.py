"""The order of examples: keyed permutations, evaluated by index, so that there is no state to keep."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import floor, isqrt

import numpy as np

from trainkit.recipe.sections.data import Window

_ROUNDS = 8
#: Consecutive indices that are permuted together and remembered: one by one costs as much as a thousand.
_BLOCK = 4096
#: Indices after which the shares of a mixture are exact, to within an example or two.
MIXTURE_BLOCK = 1024


class Permutation:
    """A keyed bijection of 0 … size - 1.

    A Feistel network on pairs (left, right) of numbers below a and b with a * b >= size, with addition modulo a and b
    in turn; results outside are sent through again until they are inside (Black and Rogaway 2002, Ciphers with
    Arbitrary Finite Domains: the generalised Feistel cipher, and cycle walking). The round function is the finaliser
    of SplitMix64 (Steele et al. 2014). It shuffles; it keeps no secrets.
    """

    def __init__(self, size: int, *key: int | str) -> None:
        assert size >= 1
        self.size = size
        self._a = np.uint64(isqrt(size - 1) + 1)
        self._b = np.uint64(-(-size // int(self._a)))
        digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Return the images of `index`, integers in 0 … size - 1 of any shape, as int64."""
        result = self._once(index.astype(np.uint64))
        while (outside := result >= self.size).any():
            result[outside] = self._once(result[outside])
        return result.astype(np.int64)

    def _once(self, index: np.ndarray) -> np.ndarray:
        left: np.ndarray = index % self._a
        right: np.ndarray = index // self._a
        for i, key in enumerate(self._keys):
            if i % 2:
                right = (right + _mix(left ^ key) % self._b) % self._b
            else:
                left = (left + _mix(right ^ key) % self._a) % self._a
        return left + right * self._a


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class ExampleOrder:
    """The order of `examples` examples over all epochs: a pure function of (shuffle, seed, name, index).

    `shuffle` is that of the recipe: "full" is a permutation of all, another one each epoch; a window of N permutes
    0 … N - 1, then N … 2N - 1, and so on, so that the first N indices need the first N examples only; False is as
    stored. With `examples` of None there are more than any index: then everything is one epoch.
    """

    def __init__(self, examples: int | None, *, shuffle: str | bool | Window, seed: int, name: str) -> None:
        assert examples is None or examples >= 1
        assert examples is not None or shuffle != "full"
        self._examples, self._key = examples, (seed, name)
        self._window = shuffle.window if isinstance(shuffle, Window) else examples or 1
        self._shuffled = shuffle is not False
        self._block = lru_cache(maxsize=8)(self._permute)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Return which example comes at each of `index`, (n,), counted over all epochs, as int64."""
        fast = self._within_one_block(int(index[0]), int(index[-1])) if len(index) else None
        if fast is not None:
            block, first = fast
            return block[index - first]
        epoch, place = np.divmod(index, self._examples) if self._examples else (np.zeros_like(index), index)
        if not self._shuffled:
            return place
        window, inside = np.divmod(place, self._window)
        block, offset = np.divmod(inside, _BLOCK)
        result = np.empty(len(index), np.int64)
        where = np.stack([epoch, window, block])
        # the indices of a batch follow one another, so that there is seldom more than one run of the same block
        cuts = [0, *(np.flatnonzero((where[:, 1:] != where[:, :-1]).any(axis=0)) + 1).tolist(), len(index)]
        for start, end in pairwise(cuts):
            result[start:end] = self._block(*where[:, start].tolist())[offset[start:end]]
        return result

    def _within_one_block(self, first: int, last: int) -> tuple[np.ndarray, int] | None:
        """Return the block that holds all of some rising indices, and where it begins; None if several blocks do."""
        if not self._shuffled:
            return None
        epoch, place = divmod(first, self._examples) if self._examples else (0, first)
        window, inside = divmod(place, self._window)
        number, offset = divmod(inside, _BLOCK)
        block = self._block(epoch, window, number)
        return (block, first - offset) if last - first + offset < len(block) else None

    def _permute(self, epoch: int, window: int, block: int) -> np.ndarray:
        first = window * self._window
        size = self._window if self._examples is None else min(self._window, self._examples - first)
        places = np.arange(block * _BLOCK, min(size, (block + 1) * _BLOCK))
        return first + Permutation(size, *self._key, epoch, window)(places)


class Mixture:
    """The order of sources: after every `MIXTURE_BLOCK` indices of a stage each source has had its share of them.

    A stage begins at an index and has weights of its own. Within a block the order is a keyed permutation. How many of
    a block's examples are of a source follows from `_shared_out` at both of its ends, so that also a source with less
    than one example a block comes as often as its weight says.
    """

    def __init__(self, stages: Sequence[tuple[int, Sequence[float]]], *, seed: int) -> None:
        """`stages` are (index where it begins, weight of each source), the first from index 0 on."""
        assert stages[0][0] == 0
        self._seed = seed
        self._begins = np.array([begin for begin, _ in stages], np.int64)
        self._weights = [[Fraction(weight) for weight in weights] for _, weights in stages]
        self._block = lru_cache(maxsize=8)(self._draws)
        self._before = np.zeros((len(stages), len(stages[0][1])), np.int64)
        for stage in range(1, len(stages)):
            self._before[stage] = self.counts_before(int(self._begins[stage]), stage - 1)

    def __call__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each of `index`, (n,), the source and how many examples of that source come before, int64 (n,)."""
        stage = np.searchsorted(self._begins, index, side="right") - 1
        block, offset = np.divmod(index - self._begins[stage], MIXTURE_BLOCK)
        sources, ranks = np.empty((2, len(index)), np.int64)
        where = np.stack([stage, block])
        for number, place in np.unique(where, axis=1).T.tolist():
            inside = (stage == number) & (block == place)
            drawn, rank = self._block(number, place)
            sources[inside], ranks[inside] = drawn[offset[inside]], rank[offset[inside]]
        return sources, ranks + self._before[stage, sources]

    def counts_before(self, index: int, stage: int | None = None) -> np.ndarray:
        """Return how many examples of each source come before `index`, int64 (sources,)."""
        if stage is None:
            stage = int(np.searchsorted(self._begins, index, side="right")) - 1
        block, offset = divmod(index - int(self._begins[stage]), MIXTURE_BLOCK)
        part = np.bincount(self._block(stage, block)[0][:offset], minlength=self._before.shape[1])
        return self._before[stage] + self._before_block(stage, block) + part

    def _before_block(self, stage: int, block: int) -> np.ndarray:
        """Return how many examples of each source the earlier blocks of a stage have, (sources,)."""
        return np.array(_shared_out(block * MIXTURE_BLOCK, self._weights[stage]), np.int64)

    def _draws(self, stage: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        before = self._before_block(stage, block)
        quotas = self._before_block(stage, block + 1) - before
        places = Permutation(MIXTURE_BLOCK, self._seed, "mixture", stage, block)(np.arange(MIXTURE_BLOCK))
        sources = np.repeat(np.arange(len(quotas)), quotas)[places]
        ranks = np.empty(MIXTURE_BLOCK, np.int64)
        for source, quota in enumerate(quotas.tolist()):
            ranks[sources == source] = before[source] + np.arange(quota)
        return sources, ranks


def _shared_out(count: int, weights: Sequence[Fraction]) -> list[int]:
    """Return how many of `count` examples each source gets by weight: half of the sources get their share rounded, the
    other half the rest, and so on in each half.

    One more example is one more for exactly one source, whatever the weights; that is not so of rounding by largest
    remainders, where more examples in all may be fewer of one source (the Alabama paradox). A source is away from its
    exact share by at most half an example for each time that the sources were halved. Fractions, since a rounding error
    would lose or double an example.
    """
    if len(weights) == 1 or not count:
        return [count, *[0] * (len(weights) - 1)]
    middle = len(weights) // 2
    first = sum(weights[:middle])
    mine = floor(count * first / (first + sum(weights[middle:])) + Fraction(1, 2))
    return _shared_out(mine, weights[:middle]) + _shared_out(count - mine, weights[middle:])


class Buckets:
    """Which examples form the batch of a step: all of one bucket, with the buckets in a new random order each epoch.

    A pure function of (sizes of the examples, seed, step). The last batch of a bucket may be short.

    Attributes:
        batches: number of batches in one epoch.
        occurring: the lengths of buckets that hold examples.
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
        """Return the examples of the batch of a step, and the length to which they are padded."""
        batch = int(self._order(np.array([step]))[0])
        number = int(np.searchsorted(self._firsts, batch, side="right")) - 1
        members = self._members[number]
        first = (batch - int(self._firsts[number])) * self._batch_size
        places = np.arange(first, min(first + self._batch_size, len(members)))
        if self._shuffled:
            places = Permutation(len(members), self._seed, "bucket", number, step // self.batches)(places)
        return members[places], self._lengths[number]
