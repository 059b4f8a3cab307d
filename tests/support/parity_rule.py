"""Numbers that are the same wherever they are made, told by a seed and a name: weights, tokens, directions.

The reference, the fixtures that were made with it and the tests make them for themselves, so that none has to be kept.
It needs numpy alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

#: Tokens below these are for what a model is told (padding, begin, end).
FIRST_TOKEN = 3


def chance(seed: int, name: str) -> np.random.RandomState:
    """The generator whose stream numpy keeps for ever (NEP 19), from the CRC-32 of "SEED NAME"."""
    return np.random.RandomState(zlib.crc32(f"{seed} {name}".encode()))


def weight(seed: int, name: str, shape: Sequence[int]) -> np.ndarray:
    """A tensor of a checkpoint, by its name there, in float32: normal draws.

    They are larger than models begin with, and those of norms not 1, so that what is left out is seen: of standard
    deviation 0.3 around 1 for a weight of one axis and around 0 for a bias, 0.5 for an embedding, 0.2 for a matrix.
    """
    drawn = chance(seed, name).standard_normal(tuple(shape))
    if len(shape) == 1:
        return (0.3 * drawn + name.endswith("weight")).astype(np.float32)
    return ((0.5 if "embed" in name or "wte" in name else 0.2) * drawn).astype(np.float32)


def tokens(seed: int, size: Sequence[int], vocab_size: int) -> np.ndarray:
    """Rows of tokens."""
    return chance(seed, "tokens").randint(FIRST_TOKEN, vocab_size, tuple(size))


def along(seed: int, name: str, numbers: np.ndarray) -> list[float]:
    """What is kept of a tensor's gradient: its norm, and its products with two directions of normal draws."""
    flat = np.asarray(numbers, np.float64).ravel()
    directions = chance(seed, f"directions of {name}").standard_normal((2, flat.size))
    return [float(np.linalg.norm(flat)), *(directions @ flat).tolist()]
