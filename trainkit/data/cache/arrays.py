"""The arrays of a shard: mapped into memory, or read from its file one by one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.data.cache.shards import DOCUMENT, LabelledShard, Shard, path_of
from trainkit.data.storage import map_file


@dataclass(frozen=True)
class Arrays:
    """The arrays of a shard, mapped into memory; see the table in `shards.py`.

    `marks` is None where everything is learned, `labels` where there are none or `documents` has them, `sizes` where
    the shard is not `measured`."""

    tokens: np.ndarray
    ends: np.ndarray
    documents: np.ndarray
    marks: np.ndarray | None
    labels: np.ndarray | None = None
    sizes: np.ndarray | None = None

    def label_at(self, token: int) -> Any:
        """Return the label of the document that a token is of."""
        return self.label_values[int(self.ends.searchsorted(self.ends.dtype.type(token), "right"))]

    @property
    def label_values(self) -> np.ndarray:
        """The label of each document or, where tokens have labels, of each token: (n,) or (n, W)."""
        return self.documents["label"] if self.labels is None else self.labels


class FileArrays:
    """The arrays of a shard, each read when it is first asked for, for what looks at all shards and checks none.

    If the file is cut off meanwhile, `read` raises; to look at a map of it would kill the process.
    """

    def __init__(self, shard: Shard, read: Callable[[int, int], bytes]) -> None:
        """`read` returns the bytes from a place of the file on, as many as it is asked for."""
        self._shard, self._read = shard, read

    @cached_property
    def tokens(self) -> np.ndarray:
        """As in `Arrays`."""
        return self._array(0)

    @cached_property
    def ends(self) -> np.ndarray:
        """As in `Arrays`."""
        return self._array(1)

    @cached_property
    def documents(self) -> np.ndarray:
        """As in `Arrays`."""
        return self._array(2)

    @cached_property
    def marks(self) -> np.ndarray | None:
        """As in `Arrays`."""
        return self._array(3) if self._shard.marked else None

    @cached_property
    def label_values(self) -> np.ndarray:
        """As in `Arrays`."""
        return self._array(4) if isinstance(self._shard, LabelledShard) else self.documents["label"]

    def _array(self, number: int) -> np.ndarray:
        layout = _layout(self._shard)
        start = sum(math.prod(shape) * kind.itemsize for kind, shape in layout[:number])
        kind, shape = layout[number]
        return np.frombuffer(self._read(start, math.prod(shape) * kind.itemsize), kind).reshape(shape)


def open_arrays(cache: Path, shard: Shard) -> Arrays:
    """Return the arrays of a shard, mapped into memory. Raises OSError or ValueError if its file is gone or cut off."""
    layout = _layout(shard)
    if not shard.size:
        tokens, ends, documents, *_ = (np.empty(0, kind) for kind, _ in layout)
        return Arrays(tokens, ends, documents, None)
    whole = map_file(path_of(cache, shard.key), shard.size)
    arrays, start = [], 0
    for kind, shape in layout:
        arrays.append(np.ndarray(shape, kind, buffer=whole, offset=start))
        start += math.prod(shape) * kind.itemsize
    tokens, ends, documents, marks, labels, sizes = arrays
    return Arrays(
        tokens, ends, documents, marks if shard.marked else None,
        labels if isinstance(shard, LabelledShard) else None, sizes if shard.measured else None,
    )  # fmt: skip


def read_part(cache: Path, shard: Shard, start: int, size: int) -> bytes:
    """Return `size` bytes of a shard's file. Raises OSError or ValueError if it is gone or cut off."""
    descriptor = os.open(path_of(cache, shard.key), os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while size and (part := os.pread(descriptor, size, start)):  # one call reads at most 2 GiB
            parts.append(part)
            start, size = start + len(part), size - len(part)
        if size:
            raise ValueError(f"it has {os.fstat(descriptor).st_size:,} bytes instead of {shard.size:,}")
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _layout(shard: Shard) -> list[tuple[np.dtype, tuple[int, ...]]]:
    """Return type and shape of each array of the table in `shards.py`, in the order of the file."""
    return [
        (np.dtype(shard.dtype).newbyteorder("<"), (shard.tokens,)),
        (np.dtype("<u4"), (shard.entries,)),
        (DOCUMENT, (shard.entries,)),
        (np.dtype("u1"), (shard.tokens if shard.marked else 0,)),
        (shard.label_type, shard.label_shape),
        (np.dtype("<u4"), (shard.entries if shard.measured else 0,)),
    ]
