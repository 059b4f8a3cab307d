"""Digests of source files, without reading every file at every start.

The digest of a file is remembered with its size, times and inode, and trusted while these stay the same. On a coarse
clock, a file that changes while it is read keeps its times. So a digest is not trusted, and the file is read again, if
the file was changed less than `RACY_NS` before (git's racy-git notes). A remote file is identified by what its store
reports, if that is enough. A directory that holds a dataset is identified by the names and contents of its files.

A large file of lines has a digest for every few megabytes, so that its parts can be tokenised in parallel, and lines
added at its end do not change the other parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from trainkit.data.documents.pieces import Span
from trainkit.data.jobs import WORKERS, Reporter, Stop, Tell, run
from trainkit.data.sources.files import chunks, is_remote, open_raw
from trainkit.data.sources.listing import list_files
from trainkit.data.sources.patterns import files_below
from trainkit.data.sources.source_file import SourceFile, check_unchanged, row_spans
from trainkit.data.storage import write_json
from trainkit.errors import TrainkitError
from trainkit.files import read_json
from trainkit.recipe.sections.data import Source

#: The coarsest clock of a file system in use ticks every 2 s.
RACY_NS = 2_000_000_000
#: Bytes of a span of a file of lines, up to the end of the line.
SPAN = 8 << 20


@dataclass(frozen=True)
class Content:
    """The digest of a file, and its parts that can be read by themselves, if there are several."""

    digest: str
    spans: tuple[Span, ...] = ()


#: By the file's `key`.
Contents = dict[str, Content]


@dataclass(frozen=True)
class _Entry:
    stat: tuple[int, ...]
    identity: str | None
    content: Content
    read_at_ns: int

    def holds_for(self, file: SourceFile) -> bool:
        if self.identity is not None or file.identity is not None:
            return self.identity == file.identity
        if is_remote(file.path):
            return False
        _, modified, changed, _ = file.stat
        return self.stat == file.stat and max(modified, changed) + RACY_NS < self.read_at_ns


def of_bytes(*parts: bytes) -> str:
    """Return a digest of several strings, which depends on where one ends and the next begins."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.hexdigest()


def of_value(value: object) -> str:
    """Return a digest of a value that JSON can represent."""
    return of_bytes(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())


def find(cache: Path, files: Iterable[SourceFile]) -> Contents | None:
    """Return the contents of the files, or None if one of them was never read before; then none is read.

    Writes nothing. Raises TrainkitError if a file cannot be read.
    """
    files = tuple(files)
    known = _load(_memory(cache, files))
    if any(file.key not in known for file in files):
        return None
    return {
        file.key: entry.content if (entry := known[file.key]).holds_for(file) else _content(file, Stop(), _ignore)
        for file in files
    }


def compute(
    cache: Path, files: Iterable[SourceFile], *, workers: int, progress: Callable[[int], None], tick: Callable[[], None]
) -> Contents:
    """Return the contents of the files. Those that had to be computed are remembered below `cache`.

    `progress` is called with the number of bytes read, from several threads.

    Raises:
        TrainkitError: a file cannot be read, or is being written; or the cache cannot be written.
    """
    files = tuple(files)
    memory = _memory(cache, files)
    known = _load(memory)
    stale = [file for file in files if not ((entry := known.get(file.key)) and entry.holds_for(file))]
    if stale:
        now = time.time_ns()
        contents = run([_job(file, progress) for file in stale], workers=workers, tick=tick)
        known |= {f.key: _Entry(f.stat, f.identity, content, now) for f, content in zip(stale, contents, strict=True)}
        listed = {file.key for file in files}
        _save(memory, {key: known[key] for key in known if key in listed or os.path.exists(key.partition(":")[2])})
    return {file.key: known[file.key].content for file in files}


def _job(file: SourceFile, progress: Callable[[int], None]) -> Callable[[Stop], Content]:
    return lambda stop: _content(file, stop, progress)


def _content(file: SourceFile, stop: Stop, progress: Callable[[int], None]) -> Content:
    if file.identity is not None:
        return Content(of_value(file.identity), row_spans(file))
    if file.kind == "huggingface":
        return _content_of_directory(file, stop, progress)
    lines = _Lines() if file.format.by_line and not file.compressed else None
    hasher = hashlib.blake2b(digest_size=16)
    _read(file.path, lines.add if lines else hasher.update, stop, progress)
    check_unchanged(file)
    if lines:
        spans = lines.spans()
        return Content(of_value([span.digest for span in spans]), spans if len(spans) > 1 and file.local else ())
    return Content(hasher.hexdigest(), row_spans(file))


def _content_of_directory(file: SourceFile, stop: Stop, progress: Callable[[int], None]) -> Content:
    assert file.reading.hub is not None
    digests = []
    for name, path in files_below(file.reading.hub.id):
        hasher = hashlib.blake2b(digest_size=16)
        _read(str(path), hasher.update, stop, progress)
        digests.append([name, hasher.hexdigest()])
    spans = row_spans(file)
    check_unchanged(file)
    return Content(of_value(digests), spans)


def _read(path: str, add: Callable[[bytes], None], stop: Stop, progress: Callable[[int], None]) -> None:
    """Call `add` with the bytes of a file, a chunk at a time. Raises TrainkitError."""
    try:
        with open_raw(path) as stream:
            for chunk in chunks(stream):
                stop.check()
                add(chunk)
                progress(len(chunk))
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=path) from error


class _Lines:
    """Divides a file of lines, a chunk at a time, after the first line end beyond every `SPAN` bytes."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._start = self._size = self._first = self._lines = 0
        self._hasher = hashlib.blake2b(digest_size=16)

    def add(self, chunk: bytes) -> None:
        while self._size + len(chunk) >= SPAN:
            cut = chunk.find(b"\n", max(0, SPAN - self._size - 1)) + 1
            if not cut:
                break
            self._take(chunk[:cut])
            self._end()
            chunk = chunk[cut:]
        self._take(chunk)

    def spans(self) -> tuple[Span, ...]:
        """Return the spans, including the unfinished last one."""
        if self._size:
            self._end()
        return tuple(self._spans)

    def _take(self, chunk: bytes) -> None:
        self._hasher.update(chunk)
        self._size += len(chunk)
        self._lines += chunk.count(b"\n")

    def _end(self) -> None:
        end = self._start + self._size
        self._spans.append(Span(self._start, end, self._first, self._hasher.hexdigest()))
        self._start, self._size, self._first = end, 0, self._lines
        self._hasher = hashlib.blake2b(digest_size=16)


def _memory(cache: Path, files: tuple[SourceFile, ...]) -> Path:
    """Return where digests are remembered: one file per tree of sources, which keeps all of a tree that grows."""
    roots = sorted({file.path.removesuffix(file.name) for file in files})
    return cache / "digests" / f"{of_value(roots)}.json"


def _load(memory: Path) -> dict[str, _Entry]:
    """Return what is remembered: nothing if the file is missing or damaged, since all sources can be read again."""
    try:
        table = read_json(memory)
        return {
            key: _Entry(tuple(stat), identity, Content(digest, tuple(Span(*span) for span in spans)), at)
            for key, (stat, identity, digest, spans, at) in table.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save(memory: Path, entries: dict[str, _Entry]) -> None:
    table = {
        key: (e.stat, e.identity, e.content.digest, [astuple(span) for span in e.content.spans], e.read_at_ns)
        for key, e in entries.items()
    }
    write_json(memory, table)


def _ignore(_: int) -> None:
    pass


@dataclass(frozen=True)
class Listing:
    """The `files` of each source, in the order of the sources, and their contents."""

    files: tuple[tuple[SourceFile, ...], ...]
    contents: Contents


def survey(cache: Path, sources: Sequence[Source], progress: Tell) -> Listing:
    """Return the files of the sources with their contents, after reading those that are not known yet. Raises
    TrainkitError."""
    files = tuple(list_files(source, cache) for source in sources)
    known: Contents = {}
    reporter = Reporter("files", 0, progress)
    for group in files:
        known |= compute(
            cache, group, workers=WORKERS, progress=lambda size: reporter.add(bytes=size), tick=reporter.tick
        )
    if not reporter.idle:
        reporter.finish()
    return Listing(files, known)


def recall(cache: Path, sources: Sequence[Source]) -> Listing | None:
    """Return the result of `survey` without writing anything; None if some files were never read. Raises
    TrainkitError."""
    files = tuple(list_files(source, cache) for source in sources)
    known: Contents = {}
    for group in files:
        contents = find(cache, group)
        if contents is None:
            return None
        known |= contents
    return Listing(files, known)
