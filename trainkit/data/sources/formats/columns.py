"""Parquet and Arrow: tables by column; only the needed columns are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainkit.data.documents.pieces import Refuse, Refused, Span
from trainkit.data.documents.templates import missing_column, needed_keys
from trainkit.data.sources.files import open_raw
from trainkit.data.sources.source_file import Rows, SourceFile, SourceRow, refuse_damaged

if TYPE_CHECKING:
    import pyarrow

_BATCH = 256
_ARROW_FILE = b"ARROW1"


def read_rows(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield each row of a table, or of a span of its row groups or record batches."""
    import pyarrow

    needed = needed_keys(file.reading)
    index = span.first if span else 0
    try:
        with _open_batches(file, needed, span) as (schema, batches):
            if problem := missing_column(file.reading, schema.names):
                return refuse(problem)
            if doubled := next((name for name in schema.names if schema.names.count(name) > 1), None):
                return refuse(Refused("", f"has two columns '{doubled}'"))
            for key in file.reading.keys:
                if not _is_text(schema.field(key).type):
                    return refuse(Refused("", f"column '{key}' holds {schema.field(key).type}, not strings"))
            for batch in batches:
                for values in _values(batch):
                    if isinstance(values, UnicodeDecodeError):
                        refuse(Refused(f":row {index}", f"is not UTF-8: {values.reason}"))
                    else:
                        yield SourceRow(index, f":row {index}", values)
                    index += 1
    except (pyarrow.ArrowException, OSError) as error:
        refuse(refuse_damaged(error))


def batches_of(file: SourceFile, columns: tuple[str, ...], span: Span | None) -> Iterator[pyarrow.RecordBatch]:
    """Yield record batches of those columns that a file has. Raises what pyarrow raises."""
    with _open_batches(file, columns, span) as (_, batches):
        yield from batches


def row_spans(file: SourceFile, size: int) -> tuple[Span, ...]:
    """Return spans of row groups of a Parquet file, or record batches of an Arrow file, of about `size` bytes each.

    There are none if one span would suffice, for a stream of record batches, and if the file cannot be read; reading
    reports why.
    """
    import pyarrow

    try:
        return tuple(_spans(_arrow_parts(file) if file.kind == "arrow" else _row_groups(file), size))
    except (pyarrow.ArrowException, OSError):
        return ()


def _spans(parts: list[tuple[int, int]], size: int) -> Iterator[Span]:
    """Yield spans of consecutive parts, each (rows, bytes)."""
    if sum(part[1] for part in parts) <= size:
        return
    start = first = row = waiting = 0
    for number, (count, part) in enumerate(parts):
        row += count
        waiting += part
        if waiting >= size or number == len(parts) - 1:
            if start == 0 and number == len(parts) - 1:
                return
            yield Span(start, number + 1, first, "")
            start, first, waiting = number + 1, row, 0


def _row_groups(file: SourceFile) -> list[tuple[int, int]]:
    from pyarrow import parquet

    with parquet.ParquetFile(open_raw(file.path)) as table:
        groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]


def _arrow_parts(file: SourceFile) -> list[tuple[int, int]]:
    """Return (rows, bytes) of the batches of a local file. It is mapped into memory, so only lengths are read."""
    import pyarrow
    from pyarrow import ipc

    if not file.local:
        return []
    with pyarrow.memory_map(file.path) as source:
        if source.read(len(_ARROW_FILE)) != _ARROW_FILE:
            return []
        with ipc.open_file(source) as table:
            batches = (table.get_batch(i) for i in range(table.num_record_batches))
            return [(batch.num_rows, batch.nbytes) for batch in batches]


@contextlib.contextmanager
def _open_batches(
    file: SourceFile, columns: Iterable[str] | None, span: Span | None
) -> Iterator[tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]]:
    """Yield the schema of all columns, and the batches of some columns."""
    with open_raw(file.path) as raw:
        yield _of_arrow(raw, columns, span) if file.kind == "arrow" else _of_parquet(raw, columns, span)


def _of_parquet(
    raw: Any, columns: Iterable[str] | None, span: Span | None
) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    from pyarrow import parquet

    table = parquet.ParquetFile(raw)
    schema = table.schema_arrow
    wanted = [name for name in schema.names if columns is None or name in columns]
    groups = range(span.start, span.end) if span else range(table.num_row_groups)
    return schema, table.iter_batches(batch_size=_BATCH, row_groups=list(groups), columns=wanted)


def _of_arrow(
    raw: Any, columns: Iterable[str] | None, span: Span | None
) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """Return the same for Arrow's file format or its stream format. A stream that is cut exactly between two batches
    looks whole."""
    from pyarrow import ipc

    is_file = raw.peek(len(_ARROW_FILE))[: len(_ARROW_FILE)] == _ARROW_FILE
    table = ipc.open_file(raw) if is_file else ipc.open_stream(raw)
    wanted = [name for name in table.schema.names if columns is None or name in columns]

    def batches() -> Iterator[pyarrow.RecordBatch]:
        numbers = range(span.start, span.end) if span else range(table.num_record_batches if is_file else 0)
        for batch in (table.get_batch(i) for i in numbers) if is_file else table:
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.select(wanted).slice(start, _BATCH)

    return table.schema, batches()


def _values(batch: pyarrow.RecordBatch) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yield the rows of a batch; instead of a row whose text is not UTF-8, the error."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            yield error
            return
        for i in range(batch.num_rows):
            yield from _values(batch.slice(i, 1))


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
