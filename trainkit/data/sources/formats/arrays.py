"""Arrays of token ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trainkit.data.documents.pieces import Piece, Refuse, Refused, Span
from trainkit.data.problems import missing_key
from trainkit.data.sources.files import open_raw
from trainkit.data.sources.formats import columns
from trainkit.data.sources.source_file import SourceFile, refuse_damaged

if TYPE_CHECKING:
    import pyarrow

#: Ids of a piece of a long array.
IDS = 1 << 20
_LEARNED = "learned"


def read_array(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Iterator[Piece]:
    """Yield the documents of a file of token ids.

    Each row of a table or of a two-dimensional array is a document; in a flat array a document ends with each
    end-of-text id. A piece has at most `IDS` ids, except that a table's row is never divided. Local arrays are mapped
    into memory; remote arrays are read whole.
    """
    if file.path.endswith(".parquet"):
        yield from _table(file, refuse, span)
        return
    array = _flat(file) if file.path.endswith(".bin") else _numpy(file)
    if isinstance(array, Refused):
        return refuse(array)
    if array.ndim == 2:
        for index, row in enumerate(array):
            if (row < 0).any():
                refuse(Refused(f":row {index}", f"holds {row.min()}, which is not a token id"))
            else:
                yield Piece(index=index, ids=np.asarray(row))
        return
    starts = range(0, max(1, len(array)), IDS)
    # check the whole array first, so that it is used whole or not at all
    if (
        array.dtype.kind == "i"
        and (least := min((array[s : s + IDS].min() for s in starts if len(array)), default=0)) < 0
    ):
        return refuse(Refused("", f"holds {least}, which is not a token id"))
    index, first = 0, True
    for start in starts:
        ids = np.asarray(array[start : start + IDS])
        ends = (np.flatnonzero(ids == file.reading.end_of_text) + 1).tolist()
        for begin, end in itertools.pairwise([0, *ends, *([len(ids)] if not ends or ends[-1] < len(ids) else [])]):
            last = end in ends[-1:] or end < len(ids) or start + IDS >= len(array)
            yield Piece(index=index, ids=ids[begin:end], first=first, last=last)
            index, first = index + last, last


def row_spans(file: SourceFile, size: int) -> tuple[Span, ...]:
    """Return the parts of a table as `columns.row_spans` does; none of an array."""
    return columns.row_spans(file, size) if file.path.endswith(".parquet") else ()


def _flat(file: SourceFile) -> np.ndarray | Refused:
    dtype = np.dtype(file.reading.dtype).newbyteorder("<")
    if file.local and file.size and not file.size % dtype.itemsize:
        return np.memmap(file.path, dtype, mode="r")
    with open_raw(file.path) as stream:
        content = stream.read()
    if len(content) % dtype.itemsize:
        hint = 'dtype = "…" is "uint16", "uint32", "int32" or "int64", as it was written'
        return Refused("", f"has {len(content):,} bytes, which is not a multiple of {file.reading.dtype}", hint)
    return np.frombuffer(content, dtype)


def _numpy(file: SourceFile) -> np.ndarray | Refused:
    try:
        if file.local:
            array: Any = np.load(file.path, mmap_mode="r", allow_pickle=False)
        else:
            with open_raw(file.path) as stream:
                array = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        return refuse_damaged(error)
    if not isinstance(array, np.ndarray):
        return Refused("", "is an archive of several arrays, not one array", "write it with numpy.save")
    if array.dtype.kind not in "iu":
        return Refused("", f"holds {array.dtype}, not token ids, which are whole numbers")
    if array.ndim not in (1, 2):
        return Refused("", f"has shape {array.shape}; an array of token ids has one dimension, or a document a row")
    return array


def _table(file: SourceFile, refuse: Refuse, span: Span | None) -> Iterator[Piece]:
    import pyarrow

    (key,) = file.reading.keys
    index = span.first if span else 0
    try:
        for batch in columns.batches_of(file, (key, _LEARNED), span):
            if key not in batch.schema.names:
                return refuse(Refused("", *missing_key(key, _names(file), "tokens_key")))
            if problem := _wrong_columns(batch, key):
                return refuse(Refused("", problem))
            for row in range(batch.num_rows):
                ids_or_problem = _row(batch, key, row)
                if isinstance(ids_or_problem, str):
                    refuse(Refused(f":row {index}", ids_or_problem))
                else:
                    yield from _runs(index, *ids_or_problem)
                index += 1
    except (pyarrow.ArrowException, OSError) as error:
        refuse(refuse_damaged(error))


def _names(file: SourceFile) -> list[str]:
    from pyarrow import parquet

    with open_raw(file.path) as raw:
        return list(parquet.ParquetFile(raw).schema_arrow.names)


def _wrong_columns(batch: pyarrow.RecordBatch, key: str) -> str | None:
    from pyarrow import types

    for name, fits in (
        (key, types.is_integer),
        (_LEARNED, lambda kind: types.is_boolean(kind) or types.is_uint8(kind)),
    ):
        if name not in batch.schema.names:
            continue
        kind = batch.schema.field(name).type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not fits(kind.value_type):
            wanted = "whole numbers" if name == key else "booleans"
            return f"column '{name}' holds {kind}, not lists of {wanted}"
    return None


def _row(batch: pyarrow.RecordBatch, key: str, row: int) -> tuple[np.ndarray, np.ndarray | None] | str:
    """Return (ids, which of them are learned or None for all), or what is wrong."""
    arrays: list[np.ndarray] = []
    for name in (key, _LEARNED):
        if name not in batch.schema.names:
            continue
        values = batch.column(name)[row].values
        if values is None or values.null_count:
            return f"'{name}' is null" if values is None else f"'{name}' holds null"
        arrays.append(values.to_numpy(zero_copy_only=False))
    ids, *rest = arrays
    if len(ids) and ids.min() < 0:
        return f"'{key}' holds {ids.min()}, which is not a token id"
    if not rest:
        return ids, None
    (learned,) = rest
    if len(ids) != len(learned):
        return f"has {len(ids)} '{key}', but {len(learned)} '{_LEARNED}'"
    return ids, learned != 0


def _runs(index: int, ids: np.ndarray, learned: np.ndarray | None) -> Iterator[Piece]:
    """Yield pieces of ids that are all learned, or all not learned."""
    changes = [] if learned is None else (np.flatnonzero(np.diff(learned.astype(np.int8))) + 1).tolist()
    borders = [0, *changes, len(ids)]
    for start, end in itertools.pairwise(borders):
        learn = learned is None or not len(ids) or bool(learned[start])
        yield Piece(index=index, ids=ids[start:end], first=start == 0, last=end == len(ids), learn=learn)
