"""The safetensors format: files are read one tensor at a time without copying, and written in shards.

A file is 8 bytes with the length of a header, the header (JSON: of every tensor its dtype, shape and place), then the
numbers, little-endian (https://github.com/huggingface/safetensors, "Format"). It is simple enough to read here, through
a memory map. The library's numpy interface copies every tensor and lacks bfloat16.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trainkit.errors import TrainkitError
from trainkit.hub.find import MODEL

FILE, INDEX = MODEL.weights, MODEL.index
#: The format allows no longer header.
MOST_HEADER_BYTES = 100_000_000
#: Files of pickled Python objects, which may run any code when they are read.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """The place of a tensor's numbers: `begin` counts from the first byte of the file."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, of one file or of many."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._maps: dict[Path, mmap.mmap] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def view(self, name: str) -> np.ndarray:
        """Return its numbers as a read-only memory map: only what is accessed is read from the disk."""
        tensor = self[name]
        if not tensor.nbytes:
            return np.zeros(tensor.shape, tensor.dtype)
        numbers = np.frombuffer(self._map(tensor.file), np.uint8, tensor.nbytes, tensor.begin)
        return numbers.view(tensor.dtype).reshape(tensor.shape)

    def release(self, name: str, rows: slice = slice(None)) -> None:
        """Release the memory that its numbers, or some rows of them, have taken; they are read again when accessed."""
        tensor = self[name]
        start, end, _ = rows.indices(tensor.shape[0] if tensor.shape else 1)
        row = tensor.nbytes // (tensor.shape[0] if tensor.shape else 1) if tensor.nbytes else 0
        first = -(-(tensor.begin + start * row) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.begin + end * row - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0 and tensor.file in self._maps and hasattr(mmap, "MADV_DONTNEED"):
            self._maps[tensor.file].madvise(mmap.MADV_DONTNEED, first, length)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as opened:
                self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def open_directory(directory: Path) -> Tensors:
    """Return the tensors of a checkpoint's directory.

    Raises:
        TrainkitError: it has no tensors, shards are missing, a file is not safetensors or is truncated, or it has only
            pickles.
    """
    if (directory / INDEX).is_file():
        return Tensors(_read_sharded(directory))
    single = directory / FILE
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return Tensors(read_header(files[0]))
    if files:
        raise _damage_error(
            f"there are {len(files)} files *.safetensors, but no {INDEX} that says which tensor is in which", directory
        )
    pickles = sorted({path.name for pattern in PICKLES for path in directory.glob(pattern)})
    if pickles:
        raise _damage_error(
            f"the weights are pickled ({', '.join(pickles[:3])}): such a file may run any code when it is read,"
            " so it is not read",
            directory,
            hint="convert it where you trust it, with torch and transformers installed:"
            " python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('"
            f"{directory}').save_pretrained('{directory}-safetensors')\"",
        )
    raise _damage_error(f"there is no {FILE} in it, and no {INDEX}", directory)


def read_header(file: Path) -> dict[str, Tensor]:
    """Return the tensors of one file.

    Raises:
        TrainkitError: it is truncated or not safetensors, or its tensors overlap or lie outside the file.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            head = opened.read(8)
            length = int.from_bytes(head, "little")
            if len(head) == 8 and length > MOST_HEADER_BYTES:
                raise _damage_error("it is not a safetensors file: its header would be longer than allowed", file)
            if len(head) < 8 or 8 + length > size:
                raise _damage_error(f"it is cut off within its header, after {size:,} bytes", file)
            text = opened.read(length)
    except OSError as error:
        raise _damage_error(f"it cannot be read: {error.strerror}", file) from error
    try:
        header = json.loads(text)
        assert isinstance(header, dict)
    except (ValueError, RecursionError, AssertionError) as error:
        raise _damage_error("it is not a safetensors file: its header is not a JSON object", file) from error
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    by_place = sorted((t.begin, t.begin + t.nbytes, name) for name, t in tensors.items())
    for (_, end, first), (begin, _, second) in pairwise(by_place):
        if begin < end:
            raise _damage_error(f"the tensors {first} and {second} overlap", file)
    return tensors


def _tensor(file: Path, name: str, entry: Any, data: int, size: int) -> Tensor:
    try:
        shape, (begin, end), dtype = tuple(entry["shape"]), entry["data_offsets"], entry["dtype"]
        right = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        right = False
    if not right:
        raise _damage_error(f"the header has no valid dtype, shape or place for the tensor {name}", file)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _damage_error(f"the tensor {name} has the dtype {dtype}, which is not one of {', '.join(DTYPES)}", file)
    tensor = Tensor(file, shape, DTYPES[dtype], data + begin)
    if tensor.nbytes != end - begin:
        raise _damage_error(
            f"the tensor {name}, {dtype}{list(shape)}, takes {tensor.nbytes:,} bytes, but has {end - begin:,}", file
        )
    if data + end > size:
        problem = f"it is cut off: the tensor {name} ends at byte {data + end:,}, the file at {size:,}"
        raise _damage_error(problem, file, hint="copy or download it again")
    return tensor


def _read_sharded(directory: Path) -> dict[str, Tensor]:
    index = directory / INDEX
    try:
        where = json.loads(index.read_bytes())["weight_map"]
        files = sorted(set(where.values()))
        assert all(isinstance(file, str) and Path(file).name == file for file in files)
        missing = [file for file in files if not (directory / file).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise _damage_error(
            "it is not an index of shards: it lacks a weight_map from names to files beside it", index
        ) from error
    if missing:
        raise _damage_error(f"shards are missing: {', '.join(missing)}", directory, hint="copy or download them")
    by_file = {file: read_header(directory / file) for file in files}
    if lost := [name for name, file in where.items() if name not in by_file[file]]:
        raise _damage_error(f"tensors are not in the shards where the index says: {', '.join(lost[:5])}", index)
    return {name: by_file[file][name] for name, file in where.items()}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to write; `numbers` returns its numbers when they are written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    numbers: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def write(directory: Path, entries: Sequence[TensorEntry], *, shard_bytes: int) -> list[Path]:
    """Write tensors into one file, or into shards of at most `shard_bytes` (or one tensor) with an index; return the
    files.

    Raises OSError.
    """
    shards = list(_shards(entries, shard_bytes))
    if len(shards) == 1:
        write_file(directory / FILE, shards[0])
        return [directory / FILE]
    files = [directory / f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        write_file(file, shard)
    index = {
        "metadata": {"total_size": sum(entry.nbytes for entry in entries)},
        "weight_map": {entry.name: file.name for file, shard in zip(files, shards, strict=True) for entry in shard},
    }
    (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return [*files, directory / INDEX]


def write_file(file: Path, entries: Iterable[TensorEntry]) -> None:
    """Write one file with these tensors, in this order. Raises OSError."""
    entries, at = list(entries), 0
    # transformers asks every file which library its tensors are of
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for entry in entries:
        places = [at, at + entry.nbytes]
        header[entry.name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": places}
        at += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of 8
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            numbers = np.asarray(entry.numbers(), entry.dtype, order="C")
            assert numbers.shape == entry.shape, (entry.name, numbers.shape, entry.shape)
            out.write(numbers.reshape(-1).view(np.uint8).data)


def _shards(entries: Sequence[TensorEntry], shard_bytes: int) -> Iterator[list[TensorEntry]]:
    shard: list[TensorEntry] = []
    size = 0
    for entry in entries:
        if shard and size + entry.nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.nbytes
    yield shard


def _damage_error(problem: str, where: Path, hint: str = "") -> TrainkitError:
    return TrainkitError(problem, where=str(where), hint=hint)
