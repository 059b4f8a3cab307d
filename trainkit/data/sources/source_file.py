"""One file of a source: where it is, and how its documents are read, a piece at a time.

A document is known by its file's name below the source's root and its place in that file. Neither changes when files
are added, so a document that is held out once stays held out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainkit.data.documents import templates
from trainkit.data.documents.pieces import Piece, Refuse, Refused, Span
from trainkit.data.documents.templates import RowReading
from trainkit.data.sources.files import is_remote, suffixes
from trainkit.data.sources.patterns import Stat, look_again, stat_of, stat_of_directory
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.source import FILE_FORMATS, FileFormat
from trainkit.recipe.spec import import_named
from trainkit.redaction import redact

#: The formats of files by their names.
FORMATS = {each.name: each for each in FILE_FORMATS}


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, or a dataset of the Hugging Face hub, or all rows of a source that makes them itself."""

    path: str
    """Absolute, or a URL; of a dataset of the hub, its name."""
    name: str
    """Below the source's root, with slashes."""
    kind: str
    """The name of its format, one of `FORMATS`."""
    reading: RowReading
    stat: Stat
    identity: str | None = None
    """What changes with its content; None where the content must be read to know."""

    @property
    def format(self) -> FileFormat:
        """Return the format of its content."""
        return FORMATS[self.kind]

    @property
    def key(self) -> str:
        """Return a name that differs between formats, because the same file may be read in two formats, which divide it
        differently. It has no secrets, because it is written to the disk."""
        return redact(f"{self.kind}:{self.path}")

    @property
    def size(self) -> int:
        """Return its bytes as stored; 0 if unknown."""
        return self.stat[0]

    def place_of(self, index: int) -> str:
        """Return where to find a document: the path, with the line or row if the file has several."""
        if self.format.one_document:
            return self.path
        return f"{self.path}:{index + 1}" if self.format.by_line else f"{self.path}:row {index}"

    @property
    def local(self) -> bool:
        """Return whether it is a file of this machine."""
        return self.format.is_file and not is_remote(self.path)

    @property
    def compressed(self) -> bool:
        """Return whether it must be decompressed from its first byte."""
        return self.format.is_file and bool(suffixes(self.path)[1])


class SourceRow(NamedTuple):
    """A row of a file, before it becomes a document."""

    number: int
    """Of the document in its file."""
    place: str
    """As in `Refused`."""
    values: Mapping[str, Any]


#: What the readers of formats with rows yield.
Rows = Iterator[SourceRow]


def refuse_damaged(error: Exception, place: str = "") -> Refused:
    """Return a refusal: the file cannot be read from `place` on."""
    return Refused(place, f"is damaged or cut off: {error}", "fetch the file again")


def read(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Iterator[Piece]:
    """Yield the documents of a file, or of a span of it, in order; an empty document is a piece without text.

    Raises:
        TrainkitError: the file cannot be opened, or the disk or the network fails.
        whatever `refuse` raises.
    """
    base = os.path.dirname(file.path)
    for row in _function(file.format.reader)(file, refuse, span):
        if isinstance(row, Piece):
            yield row
            continue
        document = templates.make_document(file.reading, row.values, row.number, base, columns=file.format.by_column)
        if isinstance(document, Refused):
            texts = (value for value in row.values.values() if isinstance(value, str))
            lost = sum(len(text.encode(errors="replace")) for text in texts)
            refuse(replace(document, place=row.place, bytes=lost))
        else:
            yield from document


def row_spans(file: SourceFile, size: int = 8 << 20) -> tuple[Span, ...]:
    """Return the parts of a file of rows that can be read by themselves, of about `size` bytes each; none where there
    is only one, and none in formats without such parts. (`digests` divides files of lines.)

    Raises:
        TrainkitError: the file cannot be opened; a dataset of the hub cannot be loaded.
    """
    spans: tuple[Span, ...] = _function(file.format.spans)(file, size) if file.format.spans else ()
    return spans


def _function(name: str) -> Any:
    return import_named(f"trainkit.data.sources.{name}")


def read_all(
    files: Iterable[tuple[SourceFile, Span | None]], *, on_error: str, refused: list[tuple[str, Refused]]
) -> Iterator[tuple[SourceFile, Piece]]:
    """Yield the documents of several files or spans. Those that cannot be used are added to `refused` with their place.

    Raises:
        TrainkitError: a file cannot be read or was changed; or a document cannot be read and `on_error` is "stop".
            Files of the standard library are always skipped: some exist only to test how Python fails to read them.
    """
    for file, span in files:

        def refuse(refusal: Refused, file: SourceFile = file) -> None:
            if on_error == "stop" and file.kind != "python" and not refusal.filtered:
                raise _error(file, refusal)
            if file.format.one_document or not refusal.place:  # nothing of the file can be used
                refusal = replace(refusal, bytes=file.size)
            refused.append((f"{file.name}{refusal.place}", refusal))

        for piece in read(file, refuse, span):
            yield file, piece
        check_unchanged(file)


def _error(file: SourceFile, refusal: Refused) -> TrainkitError:
    skip = 'or leave out what cannot be read: data.on_error = "skip"'
    where = f"{file.path}{refusal.place}"
    return TrainkitError(refusal.problem, where=where, hint=f"{refusal.hint}; {skip}" if refusal.hint else skip)


def check_unchanged(file: SourceFile) -> None:
    """Raise TrainkitError where a file has changed since it was listed: a local file, a directory that holds a
    dataset, or a remote file as far as its store reports. A commit of the hub never changes."""
    if not file.format.is_file and file.identity is not None:
        return
    try:
        unchanged = _look_again(file) == (file.stat, file.identity)
    except FileNotFoundError:
        unchanged = False
    if not unchanged:
        raise TrainkitError(
            "was changed while it was being read", where=file.path, hint="run again when nothing writes to it"
        )


def _look_again(file: SourceFile) -> tuple[Stat, str | None]:
    """Return the `stat` and `identity` of a file as they are now. Raises FileNotFoundError."""
    if file.reading.hub is not None:
        return stat_of_directory(file.reading.hub.id), None
    return look_again(file.path) if is_remote(file.path) else (stat_of(file.path), None)
