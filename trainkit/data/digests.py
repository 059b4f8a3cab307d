"""What each source file holds, without reading all of it at every start.

The digest of a file is remembered with its size, times and inode, and trusted while these stay. A file that was changed
in the very moment in which it was read keeps its times on a coarse clock; so a digest is not trusted, and the file is
read again, where the file was changed less than `RACY_NS` before (git's racy-git notes).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from trainkit.data.jobs import Stop, run
from trainkit.data.sources import SourceFile, stat_of
from trainkit.data.storage import writing
from trainkit.errors import TrainkitError

#: The coarsest clock of a file system in use ticks every 2 s.
RACY_NS = 2_000_000_000

Digests = dict[Path, str]


@dataclass(frozen=True)
class _Entry:
    stat: tuple[int, ...]
    digest: str
    read_at_ns: int

    def holds_for(self, file: SourceFile) -> bool:
        _, modified, changed, _ = file.stat
        return self.stat == file.stat and max(modified, changed) + RACY_NS < self.read_at_ns


def of_bytes(*parts: bytes) -> str:
    """A digest of several strings; where one ends and the next begins counts."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.hexdigest()


def of_value(value: object) -> str:
    """A digest of what JSON can say."""
    return of_bytes(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())


def find(cache: Path, files: Iterable[SourceFile]) -> Digests | None:
    """The digests, or None where a file has never been seen: then there is no use in reading the others.

    Writes nothing. Raises TrainkitError where a file cannot be read.
    """
    files = tuple(files)
    known = _load(_memory(cache, files))
    if any(str(file.path) not in known for file in files):
        return None
    return {
        file.path: entry.digest if (entry := known[str(file.path)]).holds_for(file) else _digest(file, Stop(), _ignore)
        for file in files
    }


def compute(
    cache: Path, files: Iterable[SourceFile], *, workers: int, progress: Callable[[int], None], tick: Callable[[], None]
) -> Digests:
    """The digests; those that had to be computed are remembered below `cache`.

    `progress` is told of the bytes read, from several threads.

    Raises:
        TrainkitError: a file cannot be read, or is being written; or the cache cannot be written.
    """
    files = tuple(files)
    memory = _memory(cache, files)
    known = _load(memory)
    stale = [f for f in files if not ((entry := known.get(str(f.path))) and entry.holds_for(f))]
    if stale:
        now = time.time_ns()
        digests = run([_job(file, progress) for file in stale], workers=workers, tick=tick)
        known |= {str(f.path): _Entry(f.stat, digest, now) for f, digest in zip(stale, digests, strict=True)}
        here = {str(file.path) for file in files}
        _save(memory, {path: known[path] for path in known if path in here or os.path.exists(path)})
    return {file.path: known[str(file.path)].digest for file in files}


def check_unchanged(file: SourceFile) -> None:
    """Raises TrainkitError where a file is not any more what it was when it was listed."""
    try:
        unchanged = stat_of(file.path) == file.stat
    except FileNotFoundError:
        unchanged = False
    if not unchanged:
        raise TrainkitError(
            "was changed while it was being read", where=str(file.path), hint="run again once nothing writes to it"
        )


def _job(file: SourceFile, progress: Callable[[int], None]) -> Callable[[Stop], str]:
    return lambda stop: _digest(file, stop, progress)


def _digest(file: SourceFile, stop: Stop, progress: Callable[[int], None]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    try:
        with file.path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                stop.check()
                hasher.update(chunk)
                progress(len(chunk))
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=str(file.path)) from error
    check_unchanged(file)
    return hasher.hexdigest()


def _memory(cache: Path, files: tuple[SourceFile, ...]) -> Path:
    """One file for each tree of sources, so that adding to a tree does not forget the rest of it."""
    roots = sorted({str(file.path).removesuffix(file.name) for file in files})
    return cache / "digests" / f"{of_value(roots)}.json"


def _load(memory: Path) -> dict[str, _Entry]:
    """What is remembered; nothing where the file is missing or damaged, since everything can be read again."""
    try:
        found = json.loads(memory.read_bytes())
        return {path: _Entry(tuple(stat), digest, at) for path, (stat, digest, at) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _save(memory: Path, entries: dict[str, _Entry]) -> None:
    table = {path: (entry.stat, entry.digest, entry.read_at_ns) for path, entry in entries.items()}
    with writing(memory) as out:
        out.write(json.dumps(table).encode())


def _ignore(_: int) -> None:
    pass
