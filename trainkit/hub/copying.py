"""Numbers of a file, into memory: converted and turned, in blocks that stay in a core's cache."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable

import ml_dtypes
import numpy as np

#: Of memory that jax on a CPU takes over as it is. It copies what lies otherwise.
ALIGNMENT = 64
#: Rows and columns that are turned at once.
BLOCK = 256
#: Numbers after each row of a block that is turned. Rows a power of two apart would all fall on the same few places of
#: a cache, and put each other out of it.
PADDING = 32


#: New memory for numbers of a shape and a dtype.
Memory = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def fresh(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory of its own, which jax on a CPU takes over."""
    size = math.prod(shape) * dtype.itemsize
    return _pages(size)[:size].view(dtype).reshape(shape)


class Scratch:
    """Memory that is used again and again, so that jax has to copy what is in it: there is room for `size` bytes, in
    so many parts."""

    def __init__(self, size: int, *, parts: int) -> None:
        self._pages, self._used = _pages(size + 2 * ALIGNMENT * parts), 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size, start = math.prod(shape) * dtype.itemsize, self._used + ALIGNMENT // 2
        self._used = -(-(start + size) // ALIGNMENT) * ALIGNMENT
        return self._pages[start : start + size].view(dtype).reshape(shape)

    def clear(self) -> None:
        """Nothing in it is needed any more."""
        self._used = 0


def _pages(size: int) -> np.ndarray:
    """Whole pages of the usual size, taken when they are written: numpy asks for huge ones, which may cost the system
    more to find than all of the copying."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1), access=mmap.ACCESS_COPY), np.uint8)


def copy(given: np.ndarray, to: np.ndarray) -> None:
    """Copy and convert; `given` may be a matrix that is turned, of a file that keeps it otherwise."""
    if given.ndim != 2 or given.flags.c_contiguous or given.strides[1] <= given.strides[0]:
        _convert(given, to)
        return
    rows, columns = given.shape  # of which the latter lie further apart
    block = np.empty((BLOCK, BLOCK + PADDING), to.dtype)[:, :BLOCK]
    bits = np.dtype(f"u{to.dtype.itemsize}")  # numbers of other libraries are copied one by one
    for left in range(0, columns, BLOCK):
        for top in range(0, rows, BLOCK):
            part = given[top : top + BLOCK, left : left + BLOCK].T
            there = block[: part.shape[0], : part.shape[1]]
            _convert(part, there)
            to[top : top + BLOCK, left : left + BLOCK].view(bits)[...] = there.view(bits).T


def _convert(given: np.ndarray, to: np.ndarray) -> None:
    if given.dtype == to.dtype:
        bits = np.dtype(f"u{to.dtype.itemsize}")
        to.view(bits)[...] = given.view(bits)
    elif given.dtype == ml_dtypes.bfloat16 and to.dtype == np.float32:
        # bfloat16 is the upper half of float32: shifted by numpy itself, which lets other threads work meanwhile
        wide = to.view(np.uint32)
        wide[...] = given.view(np.uint16)
        wide <<= 16
    else:
        to[...] = given
