"""Units of work; one worker reads and tokenises each.

A unit is some consecutive files of a source, or a part of a large file. It follows from the files alone, never from the
number of workers. Where a unit of several files ends depends on the names of the files (content-defined boundaries, as
in Muthitacharoen et al. 2001, LBFS), so that a new or growing file changes only the units near it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainkit.data.documents.labels import Labels, labels_of
from trainkit.data.documents.pieces import Span
from trainkit.data.sources.digests import Content, Contents
from trainkit.data.sources.source_file import SourceFile

#: The bytes of a unit's files after which it may end, and after which it must.
SMALL, LARGE = 1 << 20, 8 << 20


@dataclass(frozen=True)
class Unit:
    """Consecutive files of a source with their contents, or one part of a file."""

    files: tuple[SourceFile, ...]
    contents: tuple[Content, ...]
    span: Span | None = None
    """The part of its only file; None for whole files."""
    spans: int = 1
    """How many parts the file has."""

    @property
    def size(self) -> int:
        """Return about how many bytes of files it has; at least 1."""
        if self.span and self.span.digest:
            return self.span.end - self.span.start
        return max(1, sum(file.size for file in self.files) // self.spans)

    @property
    def marked(self) -> bool:
        """Return whether some of its tokens may not be targets, or may be in second texts."""
        document = self.files[0].reading.document
        return (document is not None and document.marked) or (
            any(file.kind == "array" and file.path.endswith(".parquet") for file in self.files)
        )

    @property
    def labels(self) -> Labels | None:
        """Return the labels of its documents; None without labels."""
        return labels_of(self.files[0].reading.document)


def units_of(files: Iterable[SourceFile], contents: Contents) -> Iterator[Unit]:
    """Yield groups of consecutive small files, 1 to 8 MB together; a larger file is one of its own, or several."""
    group: list[SourceFile] = []
    size = 0
    for file in files:
        spans = contents[file.key].spans
        if group and (spans or size + file.size > LARGE):
            yield _unit(group, contents)
            group, size = [], 0
        if spans:
            digest = Content(contents[file.key].digest)  # a unit may travel far, and needs its own span only
            yield from (Unit((file,), (digest,), span, len(spans)) for span in spans)
            continue
        group.append(file)
        size += file.size
        if size >= SMALL and _ends_a_unit(file):
            yield _unit(group, contents)
            group, size = [], 0
    if group:
        yield _unit(group, contents)


def _unit(files: list[SourceFile], contents: Contents) -> Unit:
    return Unit(tuple(files), tuple(contents[file.key] for file in files))


def _ends_a_unit(file: SourceFile) -> bool:
    return hashlib.blake2b(file.name.encode(errors="surrogateescape"), digest_size=1).digest()[0] < 64
