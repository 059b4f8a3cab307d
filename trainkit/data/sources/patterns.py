"""The files that match a pattern: a path or a URL with wildcards and braces."""

from __future__ import annotations

import contextlib
import difflib
import glob
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.data.sources.braces import expand_braces
from trainkit.data.sources.files import is_remote, store_of
from trainkit.errors import TrainkitError
from trainkit.text import shorten

#: (size, mtime_ns, ctime_ns, inode): while none of these changes, neither does the content, see `digests`. Of a remote
#: file: its size, 0 if unknown, and as mtime a hash of its times if its store reports no identity.
Stat = tuple[int, int, int, int]

_MAGIC = re.compile(r"[*?\[{]")
#: `?` begins the query of a URL.
_URL_MAGIC = re.compile(r"[*\[{]")
#: What stores report of a file that changes with its content.
_IDENTITIES = ("ETag", "etag", "md5Hash", "content_md5", "crc32c", "checksum", "blob_id", "sha256")
_VERSIONS = ("VersionId", "version_id", "generation", "version")
#: When a file was written: too coarse for an identity, but enough to notice that a file was replaced.
_TIMES = ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created")


@dataclass(frozen=True)
class Match:
    """A file that matches: its absolute path or URL, and its name below the first wildcard, with slashes."""

    path: str
    name: str
    stat: Stat
    identity: str | None = None
    """Of a remote file: what changes with its content, if its store reports that."""


def _check_links(root: Path) -> None:
    """Raise TrainkitError if a link below `root` leads back to a directory that it is in: `**` would never end."""
    above = [os.path.realpath(root)]
    above += [str(parent) for parent in Path(above[0]).parents]
    # depth first, with each directory once by its real path; None ends the directory on top of `inside`
    waiting: list[str | None] = [str(root)]
    inside: list[str] = []
    seen: set[str] = set()
    while waiting:
        directory = waiting.pop()
        if directory is None:
            inside.pop()
            continue
        real = os.path.realpath(directory)
        if real in inside or (real in above and inside):
            raise TrainkitError(
                "a link leads back to a directory that it is in, which ** would follow for ever",
                where=directory,
                hint="remove the link, or name the directories that hold the files",
            )
        if real in seen:
            continue
        seen.add(real)
        inside.append(real)
        waiting.append(None)
        with contextlib.suppress(OSError), os.scandir(directory) as entries:  # such as one of another user
            waiting += [entry.path for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry.path)]


def stat_of(path: str) -> Stat:
    """Return what identifies the content of a local file without reading it. Raises OSError."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def files_below(directory: str) -> list[tuple[str, Path]]:
    """Return (name below the directory, path) of every file in a directory, by name, without hidden ones.

    Raises:
        FileNotFoundError: the directory is gone.
    """
    root = Path(os.path.expanduser(directory)).absolute()
    if not root.is_dir():
        raise FileNotFoundError(root)
    paths = []
    for above, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        paths += [Path(above, name) for name in names if not name.startswith(".")]
    return sorted((path.relative_to(root).as_posix(), path) for path in paths)


def stat_of_directory(directory: str) -> Stat:
    """Return the bytes of all files, their latest times, and as inode a hash of their names, sizes, times and inodes.

    Raises:
        FileNotFoundError: the directory, or a file that it links to, is gone.
    """
    stats = [(name, stat_of(str(path))) for name, path in files_below(directory)]
    every = hashlib.blake2b(json.dumps(stats).encode(), digest_size=7).digest()
    size = sum(stat[0] for _, stat in stats)
    modified, changed = (max((stat[i] for _, stat in stats), default=0) for i in (1, 2))
    return size, modified, changed, int.from_bytes(every, "little")


def match_files(pattern: str) -> list[Match]:
    """Return the files that match a path or a URL, sorted by their names below the first wildcard.

    Hidden files match only a pattern that begins with a dot.

    Raises:
        TrainkitError: nothing matches, a file that is named without wildcards is missing, or a directory is named; the
            store of a URL is unknown, cannot be reached, or needs a package that is not installed.
    """
    if is_remote(pattern):
        return _match_urls(pattern)
    absolute = Path(os.path.expanduser(pattern.removeprefix("file://"))).absolute()
    root, tail = _split(absolute)
    files: set[Path] = set()
    missing: list[str] = []
    for expanded in _expanded(tail, pattern):
        path = root / expanded
        try:
            if path.is_file():
                files.add(path)
            elif path.is_dir():
                raise _directory(str(path))
            elif glob.has_magic(expanded):
                if "**" in expanded:
                    _check_links(root)
                names = glob.glob(expanded, root_dir=root, recursive=True)
                files.update(file for name in names if (file := root / name).is_file())
            else:
                missing.append(str(path))
        except OSError as error:  # such as a name of more than 255 bytes
            raise TrainkitError(f"no file has such a name: {error.strerror}", where=shorten(pattern)) from error
    if missing:
        raise _missing(pattern, missing, nearest(Path(missing[0])))
    if not files:
        raise TrainkitError(f"no file matches {absolute}", where=pattern, hint=nearest(absolute))
    return [local_file(path, root) for path in sorted(files, key=lambda file: file.relative_to(root).parts)]


def local_file(path: Path, root: Path) -> Match:
    """Return the match of a file below `root`. Raises TrainkitError if its size and times cannot be read."""
    try:
        return Match(str(path), path.relative_to(root).as_posix(), stat_of(str(path)))
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=str(path)) from error


def _directory(path: str) -> TrainkitError:
    return TrainkitError("is a directory, not a file", where=path, hint=f'name its files: path = "{path}/**/*.txt"')


def _missing(pattern: str, missing: list[str], hint: str) -> TrainkitError:
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    problem = "no such file" if missing == [pattern] else f"no such file: {shown}"  # the pattern itself is `where`
    return TrainkitError(problem, where=pattern, hint=hint)


def _split(path: Path) -> tuple[Path, str]:
    """Return the directories before the first wildcard, and the rest. A directory that exists as written is plain."""
    parts = path.parts
    plain = 1
    while plain < len(parts) - 1 and (not _MAGIC.search(parts[plain]) or Path(*parts[: plain + 1]).is_dir()):
        plain += 1
    return Path(*parts[:plain]), os.path.join(*parts[plain:]) if parts[plain:] else "."


def nearest(path: Path) -> str:
    """Return a hint: the deepest directory above `path` that exists, some names in it, and a name that is close."""
    above = next(parent for parent in path.parents if parent.is_dir())
    names = [entry.name for entry in above.iterdir()]
    first = path.relative_to(above).parts[0]
    if first in names:
        return f"{above / first} is neither a file nor a directory, but a device, a pipe, or a link that leads nowhere"
    close = difflib.get_close_matches(first, names, n=1, cutoff=0.7)
    return "".join(f"did you mean {above / name}? " for name in close) + _holds(str(above), names)


def _holds(directory: str, names: list[str]) -> str:
    names = sorted(name for name in names if not name.startswith("."))
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "") if names else "nothing"
    return f"{directory} holds {shown}"


def _expanded(part: str, pattern: str) -> list[str]:
    """Return what the braces in a part of a pattern stand for; an error names the whole, by which its key is found."""
    try:
        return expand_braces(part)
    except TrainkitError as error:
        raise TrainkitError(error.problem, where=pattern, hint=error.hint) from None


def _match_urls(pattern: str) -> list[Match]:
    plain = _URL_MAGIC.split(pattern, maxsplit=1)[0]
    above = pattern[: plain.rindex("/") + 1]
    files: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    with store_of(pattern) as (store, _):
        root = store._strip_protocol(above).rstrip("/")
        for expanded in _expanded(pattern, pattern):
            path = store._strip_protocol(expanded)
            if _URL_MAGIC.search(expanded):
                files |= {name: info for name, info in store.glob(path, detail=True).items() if _is_file(info)}
                continue
            try:
                info = store.info(path)
            except FileNotFoundError:
                missing.append(expanded)
                continue
            if not _is_file(info):
                raise _directory(expanded)
            files[path] = info
        if missing:
            raise _missing(pattern, missing, _listing(store, root, above))
        if not files:
            raise TrainkitError("no file matches", where=pattern, hint=_listing(store, root, above))
        return [
            Match(store.unstrip_protocol(path), path.removeprefix(root).lstrip("/"), *_remote_stat(files[path]))
            for path in sorted(files, key=lambda path: path.split("/"))
        ]


def _is_file(info: dict[str, Any]) -> bool:
    return info["type"] != "directory"


def _listing(store: Any, root: str, shown: str) -> str:
    try:
        return _holds(shown, [path.rstrip("/").rsplit("/", 1)[-1] for path in store.ls(root, detail=False)])
    except FileNotFoundError:
        return f"{shown} does not exist either"


def _remote_stat(info: dict[str, Any]) -> tuple[Stat, str | None]:
    size = info.get("size") or 0
    reported = {key: str(info[key]) for key in _IDENTITIES if info.get(key)}
    if not reported and size:
        reported = {key: str(info[key]) for key in _VERSIONS if info.get(key)}
    identity = " ".join([*(f"{key}={value}" for key, value in reported.items()), f"size={size}"]) if reported else None
    times = "" if reported else " ".join(f"{key}={info[key]}" for key in _TIMES if info.get(key))
    written = int.from_bytes(hashlib.blake2b(times.encode(), digest_size=7).digest(), "little") if times else 0
    return (size, written, 0, 0), identity


def look_again(url: str) -> tuple[Stat, str | None]:
    """Return the stat and the identity of a remote file as they are now, whatever was listed before.

    Raises:
        FileNotFoundError: the file is gone.
        TrainkitError: its store cannot be reached.
    """
    with store_of(url, listings=False) as (store, path):
        store.invalidate_cache()
        try:
            info = store.info(path)
        except FileNotFoundError:
            info = None
    if info is None:
        raise FileNotFoundError(url)
    return _remote_stat(info)
