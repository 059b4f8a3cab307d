"""Numbers that belong to the examples of a stream, such as those of a reference model, kept in the cache.

CACHE/reference/KEY.f32           the columns one after the other, sorted by name, in stored order: float32,
                                  little-endian
CACHE/reference/KEY.json          the number of examples and a checksum, written last
CACHE/reference/KEY.partial.npz   columns that are not complete yet, and which batches are done
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from trainkit.data.storage import write_file, write_json
from trainkit.files import checksum, read_json

#: Arrays (examples, …) in float32 by name.
Columns: TypeAlias = dict[str, np.ndarray]
#: The shape of one example's numbers, by name.
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

_PROGRESS = "batches_done"


def read_columns(path: Path, shapes: Shapes) -> Columns | None:
    """Return the columns in a file; None if it is missing, damaged, or has other shapes."""
    try:
        record = read_json(path.with_suffix(".json"))
        content, examples = path.read_bytes(), int(record["examples"])
        intact = checksum(content) == record["crc32"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sizes = [examples * math.prod(shapes[name]) for name in sorted(shapes)]
    if not intact or len(content) != 4 * sum(sizes):
        return None
    parts = np.split(np.frombuffer(content, "<f4"), np.cumsum(sizes)[:-1])
    return {name: part.reshape(examples, *shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}


def write_columns(path: Path, columns: Columns) -> None:
    """Write complete columns, and remove what `write_progress` wrote. Raises TrainkitError if the disk refuses."""
    content = b"".join(columns[name].astype("<f4").tobytes() for name in sorted(columns))
    with write_file(path) as file:
        file.write(content)
    examples = len(next(iter(columns.values())))
    write_json(path.with_suffix(".json"), {"examples": examples, "crc32": checksum(content)})
    _partial(path).unlink(missing_ok=True)


def read_progress(path: Path, shapes: Shapes, *, examples: int, rows: int) -> tuple[Columns, int]:
    """Return the columns so far, with zeros elsewhere, and the number of complete batches of `rows` examples."""
    try:
        with np.load(_partial(path)) as saved:
            columns = {name: saved[name] for name in shapes}
            saved_rows, batches = saved[_PROGRESS].tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        columns, saved_rows, batches = {}, 0, 0
    if saved_rows == rows and all(columns[name].shape == (examples, *shape) for name, shape in shapes.items()):
        return columns, batches
    return {name: np.zeros((examples, *shape), np.float32) for name, shape in shapes.items()}, 0


def write_progress(path: Path, columns: Columns, *, rows: int, batches: int) -> None:
    """Write columns of which `batches` batches of `rows` examples are complete. Raises TrainkitError if the disk
    refuses."""
    content, arrays = io.BytesIO(), {**columns, _PROGRESS: np.array([rows, batches])}
    np.savez(content, **arrays)  # type: ignore[arg-type]
    with write_file(_partial(path)) as file:
        file.write(content.getvalue())


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial.npz")
