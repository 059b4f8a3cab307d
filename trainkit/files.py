"""Small files that survive a power cut, and checksums that show damage.

A file is written beside its place, flushed to the disk and renamed, and then the directory that names it is flushed:
after a power cut, the old file or the new one is there, whole. JSON that trainkit reads again ends with a checksum of
itself, so that a changed bit is found before it is believed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainkit.redaction import redact

_CHUNK = 1 << 20
_SEAL = re.compile(r',?\s*"checksum": "([0-9a-f]{8})"\s*\}\s*\Z')
#: A seal is within so many characters of the end; a search of megabytes would take seconds.
_SEAL_LENGTH = 64


class Damaged(ValueError):
    """A file is not as it was written."""


def checksum(content: Any, before: int = 0) -> int:
    """Return the CRC-32 of bytes, or of all so far if `before` is that of the bytes before these."""
    return zlib.crc32(content, before)


def checksum_of(path: Path, size: int | None = None) -> str:
    """Return the checksum of a file, or of its first `size` bytes, as hexadecimal digits. Raises OSError."""
    total, left = 0, path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            total, left = checksum(chunk, total), left - len(chunk)
    return as_digits(total)


def as_digits(checksum: int) -> str:
    """Return a checksum as hexadecimal digits."""
    return f"{checksum:08x}"


@contextlib.contextmanager
def replace_file(path: Path, draft: Path | None = None, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` when the block ends, and is removed if the block raises.

    Args:
        draft: where it is written meanwhile, for a place that several processes write; by default `.NAME`.
        mode: its permissions, less those that the umask takes away.
    """
    draft = draft or path.with_name(f".{path.name}")
    try:
        if mode != 0o666:  # a draft that a killed process left may have other permissions
            draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write(path: Path, content: bytes | str, *, mode: int = 0o666) -> None:
    """Write or replace a file, whole or not at all, and flush it to the disk. `mode` as above. Raises OSError."""
    with replace_file(path, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write or replace a file with a JSON object, without secrets, and its checksum. Raises OSError."""
    write(path, seal(redact(json.dumps(value))))


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. One without a checksum, from an earlier version, is taken as it is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON, or `Damaged`.
    """
    text = path.read_bytes().decode()
    sealed = is_sealed(text)
    try:
        value = json.loads(text)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise Damaged("it is not a JSON object")
    if value.pop("checksum", None) is not None and not sealed:
        raise Damaged("its checksum is damaged")
    return value


def seal(text: str) -> str:
    """Return the JSON text of an object with its checksum as the last member."""
    body = text.rstrip().removesuffix("}").rstrip()
    comma = "" if body == "{" else ","
    return f'{body}{comma}\n "checksum": "{as_digits(checksum(body.encode()))}"\n}}\n'


def is_sealed(text: str) -> bool:
    """Return whether a JSON text ends with a checksum of what precedes it. Raises Damaged if it is another one's."""
    if (found := _SEAL.search(text, max(0, len(text) - _SEAL_LENGTH))) is None:
        return False
    if checksum(text[: found.start()].encode()) != int(found[1], 16):
        raise Damaged("it does not match its checksum")
    return True


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing, and flush their names to the disk. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def sync(path: Path) -> None:
    """Flush to the disk what was written to a file, by whichever process. Raises OSError."""
    _sync(path, os.O_RDONLY)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk, as fsync does with the contents of a file. Raises OSError.

    Some file systems, such as folders shared with a virtual machine, flush no directories: there it does nothing.
    """
    try:
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_tree(directory: Path) -> None:
    """Flush a directory and everything in it to the disk. Raises OSError."""
    for path in directory.rglob("*"):
        _sync(path, os.O_RDONLY)
    sync_directory(directory)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
