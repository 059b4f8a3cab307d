"""Reading a source file: its documents, a piece at a time, so that no large file is ever held whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from trainkit.data.documents import templates
from trainkit.data.documents.pieces import Piece, Refuse, Refused, Span
from trainkit.data.sources.formats.rows import SourceRow
from trainkit.data.sources.listing import check_unchanged
from trainkit.data.sources.source_file import SourceFile
from trainkit.errors import TrainkitError


def read(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Iterator[Piece]:
    """The documents of a file, or of a span of it, in order; one that is empty is a piece with no text.

    Raises:
        TrainkitError: the file cannot be opened, or the disk or the network fails.
        whatever `refuse` raises.
    """
    from trainkit.data.sources.formats import arrays, columns, hugging_face, lines, tables, text

    match file.kind:
        case "text":
            yield from text.text(file, refuse)
            return
        case "python":
            yield from text.python(file, refuse)
            return
        case "array":
            yield from arrays.read(file, refuse, span)
            return
        case "jsonl":
            rows = lines.jsonl(file, refuse, span)
        case "json":
            rows = lines.document(file, refuse)
        case "csv":
            rows = tables.read(file, refuse)
        case "parquet" | "arrow":
            rows = columns.rows(file, refuse, span)
        case "huggingface":
            rows = hugging_face.rows(file, refuse, span)
        case "custom":
            rows = _custom_rows(file)
    base, columnar = os.path.dirname(file.path), file.kind in ("parquet", "arrow", "huggingface")
    for row in rows:
        found = templates.make_document(file.reading, row.values, row.number, base, columns=columnar)
        if isinstance(found, Refused):
            texts = (value for value in row.values.values() if isinstance(value, str))
            lost = sum(len(text.encode(errors="replace")) for text in texts)
            refuse(replace(found, place=row.place, bytes=lost))
        else:
            yield from found


def _custom_rows(file: SourceFile) -> Iterator[SourceRow]:
    """Yield the rows that a source makes itself. Raises TrainkitError for whatever it raises."""
    assert file.reading.source is not None
    try:
        for number, values in enumerate(file.reading.source.rows()):
            yield SourceRow(number, f":row {number}", values)
    except TrainkitError:
        raise
    # the code is a plugin's, and may raise anything
    except Exception as error:
        problem = f"the source cannot make its rows: {type(error).__name__}: {error}"
        raise TrainkitError(problem, where=file.path) from error


def row_spans(file: SourceFile, size: int = 8 << 20) -> tuple[Span, ...]:
    """The parts of a file of rows that can be read by themselves, of about `size` bytes each; none where there is only
    one, and of the formats that have no such parts. (Files of lines are cut by `digests`.)

    Raises:
        TrainkitError: the file cannot be opened; a dataset of the hub cannot be loaded.
    """
    from trainkit.data.sources.formats import columns, hugging_face

    is_table = file.kind == "array" and file.path.endswith(".parquet")
    if file.kind == "huggingface":
        return hugging_face.row_spans(file, size)
    if file.kind in ("parquet", "arrow") or is_table:
        return columns.row_spans(file, size)
    return ()


def read_all(
    files: Iterable[tuple[SourceFile, Span | None]], *, on_error: str, refused: list[tuple[str, Refused]]
) -> Iterator[tuple[SourceFile, Piece]]:
    """The documents of several files or spans. Those that cannot be used are added to `refused` with their place.

    Raises:
        TrainkitError: a file cannot be read or was changed; or a document cannot be read and `on_error` is "stop".
            The standard library's are skipped always: it holds files that only its own tests mean to read.
    """
    for file, span in files:

        def refuse(found: Refused, file: SourceFile = file) -> None:
            if on_error == "stop" and file.kind != "python" and not found.filtered:
                raise _error(file, found)
            if _is_of_all(file, found):
                found = replace(found, bytes=file.size)
            refused.append((f"{file.name}{found.place}", found))

        for piece in read(file, refuse, span):
            yield file, piece
        check_unchanged(file)


def _is_of_all(file: SourceFile, found: Refused) -> bool:
    """Whether the whole file cannot be used, and not a row of it."""
    if file.kind in ("text", "python") or not found.place:
        return True
    return file.kind == "json" and not found.place.startswith(":row")


def _error(file: SourceFile, found: Refused) -> TrainkitError:
    skip = 'or leave out what cannot be read: data.on_error = "skip"'
    where = f"{file.path}{found.place}"
    return TrainkitError(found.problem, where=where, hint=f"{found.hint}; {skip}" if found.hint else skip)
