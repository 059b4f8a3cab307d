"""Memory for parts of leaves, and fast copies of tensors into it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable

import ml_dtypes
import numpy as np

#: Alignment of memory that jax on a CPU takes over; it copies memory with another alignment.
ALIGNMENT = 64
#: Rows and columns that are transposed at once.
BLOCK = 256
#: Numbers after each row of a block that is transposed. Rows a power of two apart would map to the same few cache
#: lines and evict each other.
PADDING = 32

#: Returns new memory for numbers of a shape and a dtype.
Memory = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def fresh(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return new memory, which jax on a CPU takes over."""
    size = math.prod(shape) * dtype.itemsize
    return _pages(size)[:size].view(dtype).reshape(shape)


class Scratch:
    """Memory that is reused, so that jax has to copy from it: `size` bytes in this many parts."""

    def __init__(self, size: int, *, parts: int) -> None:
        self._pages, self._used = _pages(size + 2 * ALIGNMENT * parts), 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size, start = math.prod(shape) * dtype.itemsize, self._used + ALIGNMENT // 2
        self._used = -(-(start + size) // ALIGNMENT) * ALIGNMENT
        return self._pages[start : start + size].view(dtype).reshape(shape)

    def clear(self) -> None:
        """Free all of it for new numbers."""
        self._used = 0


def _pages(size: int) -> np.ndarray:
    """Return whole pages of the usual size, allocated when they are written. numpy asks for huge pages, which may take
    longer to find than all of the copying."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1), access=mmap.ACCESS_COPY), np.uint8)


def copy(given: np.ndarray, to: np.ndarray) -> None:
    """Copy and convert `given`, which may be a transposed matrix."""
    if given.ndim != 2 or given.flags.c_contiguous or given.strides[1] <= given.strides[0]:
        _convert(given, to)
        return
    rows, columns = given.shape  # columns lie further apart in memory than rows
    block = np.empty((BLOCK, BLOCK + PADDING), to.dtype)[:, :BLOCK]
    bits = np.dtype(f"u{to.dtype.itemsize}")  # dtypes of other libraries are copied number by number
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
