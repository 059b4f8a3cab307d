"""Patterns of file names, and opening what may be compressed."""

from __future__ import annotations

import glob
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from trainkit.errors import TrainkitError

#: What reading a damaged compressed stream raises.
DAMAGED = (EOFError, zlib.error, OSError)

_MAGIC = re.compile(r"[*?\[{]")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def expand_braces(pattern: str) -> list[str]:
    """`{a,b}` to each of its parts and `{000..127}` to each number, padded as written; from left to right, also nested.

    Braces that hold neither a comma nor a range, and such as are not closed, stand for themselves, as in a shell.
    """
    for start in (i for i, c in enumerate(pattern) if c == "{"):
        found = _closing(pattern, start)
        if found is None:
            continue
        end, commas = found
        head, inner, tail = pattern[:start], pattern[start + 1 : end], pattern[end + 1 :]
        if commas:
            cuts = [start, *commas, end]
            parts = [pattern[a + 1 : b] for a, b in itertools.pairwise(cuts)]
        elif match := _RANGE.fullmatch(inner):
            parts = _numbers(*match.groups())
        else:
            continue
        return [
            head + middle + rest for part in parts for middle in expand_braces(part) for rest in expand_braces(tail)
        ]
    return [pattern]


def _closing(pattern: str, start: int) -> tuple[int, list[int]] | None:
    """Where the brace that opens at `start` closes, and its own commas."""
    depth = 0
    commas: list[int] = []
    for i in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[i], 0)
        if depth == 0:
            return i, commas
        if pattern[i] == "," and depth == 1:
            commas.append(i)
    return None


def _numbers(first: str, last: str) -> list[str]:
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    a, b = int(first), int(last)
    return [f"{n:0{width}d}" for n in range(a, b + (1 if a <= b else -1), 1 if a <= b else -1)]


def match_files(pattern: str) -> tuple[Path, list[Path]]:
    """The directory above the first wildcard of `pattern`, and the files that match, sorted by their names below it.

    Hidden files match only what begins with a dot.

    Raises:
        TrainkitError: nothing matches, a file that is named outright is missing, or a directory is named.
    """
    absolute = Path(pattern).expanduser().absolute()
    root, tail = _split(absolute)
    found: set[Path] = set()
    missing: list[Path] = []
    for one in expand_braces(tail):
        path = root / one
        if path.is_file():
            found.add(path)
        elif path.is_dir():
            raise TrainkitError(
                "is a directory, not a file", where=str(path), hint=f'name its files: path = "{path}/**/*.txt"'
            )
        elif glob.has_magic(one):
            names = glob.glob(one, root_dir=root, recursive=True)
            found.update(file for name in names if (file := root / name).is_file())
        else:
            missing.append(path)
    if missing:
        shown = ", ".join(map(str, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise TrainkitError(f"no such file: {shown}", where=pattern, hint=_nearest_directory(missing[0]))
    if not found:
        raise TrainkitError(f"no file matches {absolute}", where=pattern, hint=_nearest_directory(absolute))
    return root, sorted(found, key=lambda file: file.relative_to(root).parts)


def _split(path: Path) -> tuple[Path, str]:
    """The directories before the first wildcard, and the rest. Directories that exist as written are no wildcards."""
    parts = path.parts
    plain = 1
    while plain < len(parts) - 1 and (not _MAGIC.search(parts[plain]) or Path(*parts[: plain + 1]).is_dir()):
        plain += 1
    return Path(*parts[:plain]), os.path.join(*parts[plain:]) if parts[plain:] else "."


def _nearest_directory(path: Path) -> str:
    """A hint: the deepest directory above `path` that exists, and some of what is in it."""
    above = next(parent for parent in path.parents if parent.is_dir())
    names = sorted(entry.name for entry in above.iterdir() if not entry.name.startswith("."))
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "") if names else "nothing"
    return f"{above} holds {shown}"


def open_binary(path: Path) -> BinaryIO:
    """The bytes of a file; those inside it where its name ends in `.gz` or `.zst`.

    Raises:
        OSError: as `open`. Reading a damaged stream raises one of `DAMAGED`.
    """
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")
        return cast(BinaryIO, io.BufferedReader(stream, 1 << 18))
    return path.open("rb")


def chunks(stream: BinaryIO, size: int = 1 << 20) -> Iterator[bytes]:
    """The rest of a stream in pieces of at most `size` bytes."""
    while chunk := stream.read(size):
        yield chunk
