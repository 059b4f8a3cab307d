"""Arrays on disk: zarr3 through TensorStore, a directory for each array, crc32c in every chunk. Imports no jax.

TensorStore is imported where it is used: it takes half a second that the first step need not wait for.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trainkit.checkpoint.manifest import Leaf
from trainkit.files import as_digits, checksum, sync_directory

#: The file that describes an array, beside its chunks.
METADATA = "zarr.json"
#: The bytes at the end of each chunk that are its checksum.
CHUNK_CHECKSUM_BYTES = 4
#: start and stop along each axis
Box: TypeAlias = tuple[tuple[int, int], ...]

#: Files and directories of an array, at least: its directory, its metadata, and one chunk.
FILES_PER_ARRAY = 3
#: Limits of TensorStore while a training step needs the processors.
GENTLY = {"file_io_concurrency": {"limit": 4}, "data_copy_concurrency": {"limit": 1}}
#: Larger shards are cut into chunks: memory stays bounded, and a reader on another mesh reads only what it needs.
CHUNK_BYTES = 64 << 20
#: Bytes that may be on their way to or from the disk at once.
IN_FLIGHT_BYTES = 256 << 20


class WriteWindow:
    """Pending reads or writes, bounded by the bytes that they hold. Leaving the `with` block waits for all of them.

    It waits after an exception too: the data of a write must outlive it, and its directory can be removed only then.
    """

    def __init__(self, done: Callable[[Any, Any], None] | None = None) -> None:
        self._waiting: deque[tuple[Any, Any, int]] = deque()
        self._bytes = 0
        self._done = done

    def add(self, future: Any, size: int, label: Any = None) -> None:
        """Add a future of `size` bytes. While there are too many, wait for the oldest and raise what it raises."""
        self._waiting.append((future, label, size))
        self._bytes += size
        while self._bytes > IN_FLIGHT_BYTES:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        future, label, size = self._waiting.popleft()
        self._bytes -= size
        result = future.result()
        if self._done:
            self._done(label, result)

    def __enter__(self) -> WriteWindow:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            while error_type is None and self._waiting:
                self._finish_oldest()
        finally:
            for future, _label, _size in self._waiting:
                future.exception()


def chunk_shape(shard: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of a chunk: the shard, or an equal part of it of at most CHUNK_BYTES if one axis can be cut so.

    It divides the shard, so that no two devices write to one chunk.
    """
    whole = tuple(max(1, size) for size in shard)
    pieces = math.ceil(math.prod(whole) * itemsize / CHUNK_BYTES)
    cuts = ((n, axis) for n in range(pieces, 8 * pieces) for axis, size in enumerate(whole) if size % n == 0)
    n, axis = next(cuts, (1, 0))
    return tuple(size // n if i == axis else size for i, size in enumerate(whole))


def create(root: Path, leaves: dict[str, tuple[Leaf, tuple[int, ...]]], *, exist: bool = False) -> dict[str, Any]:
    """Create arrays, or open those that `exist`, and return them by name. `leaves` holds (leaf, shape of a shard).

    Raises ValueError or OSError.
    """
    import tensorstore as ts

    # a new context each time, because one that is kept grows
    context = ts.Context(GENTLY)
    opening = {}
    with WriteWindow() as window:
        for name, (leaf, shard) in leaves.items():
            chunk = chunk_shape(shard, ts.dtype(leaf.dtype).numpy_dtype.itemsize)
            spec = {**_spec(root / name), "metadata": _metadata(leaf, chunk)}
            # without these two settings a deleted chunk reads as zeros
            spec |= {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
            opening[name] = ts.open(spec, create=not exist, open=exist, context=context)
            window.add(opening[name], 0)
    return {name: future.result() for name, future in opening.items()}


def write(root: Path, arrays: dict[str, Any], parts: Iterable[tuple[str, Box, np.ndarray]]) -> None:
    """Write parts into arrays made by `create`, and flush everything to the disk.

    The parts must not change before this returns: they are not copied.
    """
    with WriteWindow() as window:
        for name, box, part in parts:
            if part.size:
                target = _at(arrays[name], box)
                window.add(target.write(part, can_reference_source_data_indefinitely=True), part.nbytes)
    # TensorStore syncs the files, but not the directories that list them
    for directory in (*(root / name for name in arrays), root):
        sync_directory(directory)


def forget_cached(root: Path) -> None:
    """Drop what `write` wrote from the page cache, so that the next reader reads the disk."""
    if sys.platform != "linux":
        return
    for path in root.glob("*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def checksum_of(array: Path) -> str:
    """Return the checksum of an array: of its metadata, and of the names and checksums of its chunks.

    TensorStore compares each chunk with its checksum as it reads it. So no chunk is read here as a whole, and one of
    another step or array is found nevertheless. Raises OSError.
    """
    total = 0
    for path in sorted(array.iterdir()):
        if path.name.startswith("."):  # such as what file systems and copying programs leave
            continue
        with path.open("rb") as file:
            if path.name != METADATA:
                file.seek(-CHUNK_CHECKSUM_BYTES, os.SEEK_END)
            total = checksum(path.name.encode() + file.read(), total)
    return as_digits(total)


def open_all(
    root: Path, leaves: Mapping[str, Leaf], checksums: Mapping[str, str], *, gently: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the arrays that can be opened, by name, and the problems of the others, a sentence each.

    `checksums` are those of the manifest, which lacks them if an earlier version wrote it.
    """
    import tensorstore as ts

    # the cache serves several parts of a chunk from one read of it; `gently` is for readers of whole chunks
    context = ts.Context(GENTLY if gently else {"cache_pool": {"total_bytes_limit": IN_FLIGHT_BYTES}})
    opening = {
        name: ts.open({**_spec(root / name), "fill_missing_data_reads": False}, read=True, context=context)
        for name in leaves
    }
    arrays, problems = {}, []
    for name, future in opening.items():
        leaf = leaves[name]
        if error := future.exception():
            problems.append(f"{name}: {message_of(error)}")
            continue
        array = future.result()
        if (array.shape, array.dtype.name) != (leaf.shape, leaf.dtype):
            found = describe(array.shape, array.dtype.name)
            problems.append(f"{name}: the array is {found}, the manifest says {describe(leaf.shape, leaf.dtype)}")
        elif problem := _other_array(root / name, checksums.get(name)):
            problems.append(f"{name}: {problem}")
        else:
            arrays[name] = array
    return arrays, problems


def _other_array(array: Path, expected: str | None) -> str | None:
    """Return what is wrong if an array is not the one with this checksum."""
    try:
        found = expected and checksum_of(array)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None if found == expected else "it is not the array that was saved: its checksum is another one"


def read_part(array: Any, box: Box) -> Any:
    """Return a future of the numpy array in a box; `result()` raises ValueError if a chunk is missing or damaged."""
    return _at(array, box).read(order="C")


def damage(array: Any) -> list[str]:
    """Read every chunk, and return a sentence for each that is missing or damaged."""
    found: list[str] = []
    waiting: deque[Any] = deque()
    for box in _chunks(array.shape, array.chunk_layout.read_chunk.shape or ()):
        waiting.append(read_part(array, box))
        if len(waiting) * CHUNK_BYTES >= IN_FLIGHT_BYTES:
            found += _failed(waiting.popleft())
    for future in waiting:
        found += _failed(future)
    return found


def describe(shape: tuple[int, ...], dtype: str) -> str:
    """Return dtype and shape in words, such as `float32[8, 16]`."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def message_of(error: BaseException) -> str:
    """Return the message of a TensorStore error without the spec and source locations that follow it."""
    return str(error).split(" [", 1)[0]


def _failed(future: Any) -> list[str]:
    error = future.exception()
    return [message_of(error)] if error else []


def _chunks(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[Box]:
    if 0 in shape:
        return
    axes = [[(start, min(start + c, n)) for start in range(0, n, c)] for n, c in zip(shape, chunk, strict=True)]
    yield from itertools.product(*axes)


def _at(array: Any, box: Box) -> Any:
    return array[tuple(slice(start, stop) for start, stop in box)] if box else array


def _spec(path: Path) -> dict[str, Any]:
    # TensorStore takes no path with .. in it
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path.resolve()}/"}}


def _metadata(leaf: Leaf, chunk: tuple[int, ...]) -> dict[str, Any]:
    return {
        "shape": leaf.shape,
        "data_type": leaf.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        # c.0.1 instead of c/0/1: no directories within an array
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
