"""Reading a source file: its documents, a piece at a time, so that no file is ever held whole."""

from __future__ import annotations

import codecs
import difflib
import io
import json
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainkit.data.digests import check_unchanged
from trainkit.data.files import DAMAGED, chunks, open_binary
from trainkit.data.sources import SourceFile
from trainkit.errors import TrainkitError

#: Longer documents are tokenised in pieces of at most so many characters.
PIECE = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A document, or a part of one so long that it is tokenised in parts."""

    index: int
    """Of the document in its file."""
    text: str
    bytes: int
    """Of the text in UTF-8."""
    first: bool
    """Whether the document begins with it."""
    last: bool
    """Whether the document ends with it."""


@dataclass(frozen=True)
class Unreadable:
    """A document that cannot be used: where it is (`:line`, `:byte 17` or nothing, after the file's name), and why."""

    place: str
    problem: str
    hint: str = ""

    def error(self, file: SourceFile) -> TrainkitError:
        skip = 'or leave out what cannot be read: data.on_error = "skip"'
        return TrainkitError(
            self.problem, where=f"{file.path}{self.place}", hint=f"{self.hint}; {skip}" if self.hint else skip
        )


#: Told of each document that cannot be read: raises, or counts it and returns.
Refuse = Callable[[Unreadable], None]


def read(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """The documents of a file, in order; one that is empty is a piece with no text.

    Raises:
        TrainkitError: the file cannot be opened.
        whatever `refuse` raises.
    """
    try:
        match file.kind:
            case "text":
                yield from _text(file, refuse)
            case "python":
                yield from _python(file, refuse)
            case "jsonl":
                yield from _jsonl(file, refuse)
            case "parquet":
                yield from _parquet(file, refuse)
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=str(file.path)) from error


def read_all(
    files: Iterable[SourceFile], *, on_error: str, skipped: list[tuple[str, str]]
) -> Iterator[tuple[SourceFile, Piece]]:
    """The documents of several files. Those that cannot be read are added to `skipped` as (where, why).

    Raises:
        TrainkitError: a file cannot be read or was changed; or a document cannot be read and `on_error` is "stop".
            The standard library's are skipped always: it holds files that only its own tests mean to read.
    """
    for file in files:

        def refuse(found: Unreadable, file: SourceFile = file) -> None:
            if on_error == "stop" and file.kind != "python":
                raise found.error(file)
            skipped.append((f"{file.name}{found.place}", found.problem))

        for piece in read(file, refuse):
            yield file, piece
        check_unchanged(file)


def _text(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document, byte for byte (a byte order mark aside). It is checked first, so that it is taken whole or not."""
    offset = 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with open_binary(file.path) as stream:
            for chunk in chunks(stream):
                waiting = len(decoder.getstate()[0])
                decoder.decode(chunk)
                offset += len(chunk)
            waiting = len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return refuse(Unreadable(f":byte {offset - waiting + error.start}", f"is not UTF-8: {error.reason}"))
    except DAMAGED as error:
        if _is_plain(file):
            raise
        return refuse(_damaged(error))
    with open_binary(file.path) as stream:
        decoded = codecs.iterdecode(chunks(stream), "utf-8-sig")
        yield from _pieces(0, decoded)


def _python(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document, decoded as its coding cookie says (PEP 263)."""
    source = file.path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return refuse(Unreadable("", f"cannot be decoded: {error}"))
    yield from _pieces(0, [text])


def _jsonl(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document a line; blank lines are none."""
    lines = 0
    try:
        with open_binary(file.path) as stream:
            for lines, line in enumerate(stream, 1):
                found = _line(line.removeprefix(codecs.BOM_UTF8) if lines == 1 else line, file.text_key)
                if isinstance(found, str):
                    yield from _pieces(lines - 1, [found])
                elif found is not None:
                    refuse(Unreadable(f":{lines}", *found))
    except DAMAGED as error:
        if _is_plain(file):
            raise
        refuse(_damaged(error, f":{lines + 1}"))


def _line(line: bytes, key: str) -> str | tuple[str, str] | None:
    """The text of a JSON line, (what is wrong, how to mend it), or None for a blank line."""
    if not line.strip():
        return None
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            return f"is {_called(row)}, not an object", f'lines look like {{"{key}": "…"}}'
        if key not in row:
            return _missing(key, list(row))
        if not isinstance(row[key], str):
            return f"'{key}' is {_called(row[key])}, not a string", "data.train.text_key names the key that holds text"
        row[key].encode()
        return row[key]
    except UnicodeEncodeError:
        return f"'{key}' has half of a surrogate pair, which is no text", ""
    except UnicodeDecodeError as error:
        return f"is not UTF-8: {error.reason} at byte {error.start} of the line", ""
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg} at column {error.colno}", ""
    except (ValueError, RecursionError) as error:
        return f"is not JSON that can be read: {error}", ""


def _parquet(file: SourceFile, refuse: Refuse) -> Iterator[Piece]:
    """One document a row."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as table:
            names = table.schema_arrow.names
            if file.text_key not in names:
                return refuse(Unreadable("", *_missing(file.text_key, names)))
            kind = table.schema_arrow.field(file.text_key).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                return refuse(Unreadable("", f"column '{file.text_key}' holds {kind}, not strings"))
            row = 0
            for batch in table.iter_batches(batch_size=256, columns=[file.text_key]):
                for text in batch.column(0).to_pylist():
                    if text is None:
                        refuse(Unreadable(f":row {row}", f"'{file.text_key}' is null"))
                    else:
                        yield from _pieces(row, [text])
                    row += 1
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        refuse(_damaged(error))


def _pieces(index: int, parts: Iterable[str]) -> Iterator[Piece]:
    """A document that comes in parts, cut where tokenisers cut too: after a line end that a non-space follows."""
    waiting, first = "", True
    for part in parts:
        waiting += part
        while len(waiting) > PIECE:
            cut = _cut(waiting)
            yield Piece(index, waiting[:cut], len(waiting[:cut].encode()), first=first, last=False)
            waiting, first = waiting[cut:], False
    yield Piece(index, waiting, len(waiting.encode()), first=first, last=True)


def _cut(text: str) -> int:
    end = text.rfind("\n", PIECE // 2, PIECE)
    while end >= 0 and text[end + 1].isspace():
        end = text.rfind("\n", PIECE // 2, end)
    return end + 1 if end >= 0 else PIECE


def _is_plain(file: SourceFile) -> bool:
    """Whether an OSError while reading is the disk's, not the compressed stream's."""
    return file.path.suffix not in (".gz", ".zst")


def _damaged(error: Exception, place: str = "") -> Unreadable:
    return Unreadable(place, f"is damaged or cut off: {error}", "fetch the file again")


def _missing(key: str, found: list[str]) -> tuple[str, str]:
    close = difflib.get_close_matches(key, found, n=1, cutoff=0.5)
    guess = close[0] if close else next((name for name in ("text", "content", "body") if name in found), None)
    shown = ", ".join(f"'{name}'" for name in found[:8]) or "none"
    hint = f'did you mean text_key = "{guess}"?' if guess else "set text_key to the one that holds text"
    return f"has no '{key}'; found: {shown}", hint


def _called(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
