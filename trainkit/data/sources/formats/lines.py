"""JSON: an object per line, or a list of objects per file."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from trainkit.data.documents.pieces import Refuse, Refused, Span
from trainkit.data.problems import Problem, kind_of
from trainkit.data.sources.files import DAMAGED, open_binary, open_raw
from trainkit.data.sources.source_file import Rows, SourceFile, SourceRow, refuse_damaged


def read_lines(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield a row for each line of a file, or of a span of its bytes, which begins at the start of a line. Blank lines
    are skipped, but count in the numbers of rows."""
    shape = f'lines look like {{"{(file.reading.keys or ("text",))[0]}": "…"}}'
    number = first = span.first if span else 0
    try:
        for number, line in enumerate(_lines(file, span), first + 1):
            parsed = _line(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, shape)
            if isinstance(parsed, dict):
                yield SourceRow(number - 1, f":{number}", parsed)
            elif parsed is not None:
                refuse(Refused(f":{number}", *parsed, bytes=len(line)))
    except DAMAGED as error:
        refuse(refuse_damaged(error, f":{number + 1}"))


def _lines(file: SourceFile, span: Span | None) -> Iterator[bytes]:
    if span is None:
        with open_binary(file.path) as stream:
            yield from stream
        return
    assert not file.compressed, "only plain files have spans of bytes"
    with open_raw(file.path) as raw:
        raw.seek(span.start)
        yield from _first_bytes(raw, span.end - span.start)


def _first_bytes(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (line := stream.readline()):
        yield line
        size -= len(line)


def _line(line: bytes, shape: str) -> dict[str, Any] | Problem | None:
    """Return the object in a line; (what is wrong, how to fix it); or None for a blank line."""
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error.reason} at byte {error.start} of the line", ""
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at column {error.colno}", ""
    except (ValueError, RecursionError) as error:
        return f"cannot be read as JSON: {error}", ""
    return row if isinstance(row, dict) else (f"is {kind_of(row)}, not an object", shape)


def read_list(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield a row for each element of the list in a file, or of the only list among the values of its object.

    The whole file and all its rows are held in memory.
    """
    try:
        with open_binary(file.path) as stream:
            rows = _list(json.loads(stream.read().decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        return refuse(Refused(f":byte {error.start}", f"is not UTF-8: {error.reason}", bytes=file.size))
    except json.JSONDecodeError as error:
        lines = 'if each line is an object of its own, say so: format = "jsonl"' if error.msg == "Extra data" else ""
        problem = f"is not JSON: {error.msg} at column {error.colno}"
        return refuse(Refused(f":{error.lineno}", problem, lines, bytes=file.size))
    except DAMAGED as error:
        return refuse(refuse_damaged(error))
    except (ValueError, RecursionError) as error:
        return refuse(Refused("", f"cannot be read as JSON: {error}"))
    if isinstance(rows, tuple):
        return refuse(Refused("", *rows))
    for index, row in enumerate(rows):
        if isinstance(row, dict):
            yield SourceRow(index, f":row {index}", row)
        else:
            refuse(Refused(f":row {index}", f"is {kind_of(row)}, not an object", 'rows look like {"text": "…"}'))


def _list(content: Any) -> list[Any] | Problem:
    if isinstance(content, list):
        return content
    hint = "give a list of objects, or an object with one such list"
    if not isinstance(content, dict):
        return f"is {kind_of(content)}, not a list of objects", hint
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    if len(lists) == 1:
        return next(iter(lists.values()))
    number = f"{len(lists)} lists: {', '.join(map(repr, list(lists)[:8]))}" if lists else "no list"
    return f"is an object with no single list of rows: it has {number}", hint
