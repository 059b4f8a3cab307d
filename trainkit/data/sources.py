"""From the recipe's sources to files, and from files to documents.

A document is known by its file's name below the source's root and its place in that file. Both stay what they are when
files are added, so that what is held out once stays held out.
"""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainkit.data.files import match_files
from trainkit.errors import TrainkitError
from trainkit.recipe.data import Files, Source

Kind = Literal["text", "jsonl", "parquet", "python"]
#: (size, mtime_ns, ctime_ns, inode): while none of these changes, neither does the content, see `digests`.
Stat = tuple[int, int, int, int]

_BY_SUFFIX: dict[str, Kind] = {
    ".txt": "text",
    ".md": "text",
    ".py": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSED = (".gz", ".zst")
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. `name` is its path below the source's root, with slashes."""

    path: Path
    name: str
    kind: Kind
    text_key: str
    stat: Stat

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.stat[0]


def stat_of(path: Path) -> Stat:
    """What identifies the content of a file without reading it. Raises OSError."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def list_files(source: Source) -> tuple[SourceFile, ...]:
    """The files of a source in a fixed order; at least one.

    Raises:
        TrainkitError: a pattern matches nothing, a file is missing, or its format cannot be told.
    """
    return _matching(source) if isinstance(source, Files) else _standard_library()


def _matching(source: Files) -> tuple[SourceFile, ...]:
    files: dict[Path, SourceFile] = {}
    for pattern in (source.path,) if isinstance(source.path, str) else source.path:
        root, paths = match_files(pattern)
        for path in paths:
            if path not in files:
                kind = _kind(path) if source.format == "auto" else source.format
                files[path] = _file(path, root, kind, source.text_key if kind in ("jsonl", "parquet") else "")
    return tuple(files.values())


def _standard_library() -> tuple[SourceFile, ...]:
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_LIBRARY]
        found += [Path(directory, name) for name in names if name.endswith(".py")]
    if not found:
        raise TrainkitError(
            "this interpreter's standard library holds no .py files",
            where=str(root),
            hint='use text of your own: [[data.train]] path = "…"',
        )
    files = (_file(path, root, "python", "") for path in found if path.is_file())
    return tuple(sorted(files, key=lambda file: file.name))


def _file(path: Path, root: Path, kind: Kind, text_key: str) -> SourceFile:
    try:
        return SourceFile(path, path.relative_to(root).as_posix(), kind, text_key, stat_of(path))
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=str(path)) from error


def _kind(path: Path) -> Kind:
    bare = path.with_suffix("") if path.suffix in _COMPRESSED else path
    kind = _BY_SUFFIX.get(bare.suffix)
    if kind is None or (kind == "parquet" and bare != path):
        raise TrainkitError(
            f"cannot tell the format of a '{''.join(path.suffixes[-2:]) or path.name}' file by its name",
            where=str(path),
            hint=f"known are {', '.join(_BY_SUFFIX)} (all but .parquet also with {' and '.join(_COMPRESSED)});"
            ' or say it: format = "text", "jsonl" or "parquet"',
        )
    return kind
