"""What is written to the cache is written whole or not at all.

A file is written beside its place, synced, and renamed. What a disk refuses becomes a `TrainkitError` with the path.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainkit.errors import TrainkitError

_TEMPORARY = ".tmp-"
#: What a killed writer left is removed once nobody has written to it for so long (seconds).
_ABANDONED = 24 * 3600


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turns an `OSError` of writing to `path` into a TrainkitError."""
    try:
        yield
    except OSError as error:
        raise TrainkitError(
            f"cannot write the token cache: {error.strerror or error}",
            where=str(path),
            hint='make room there or permit writing, or choose another directory: --set data.cache="DIRECTORY"',
        ) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write; it appears at `path` when the block ends, and not at all when the block raises.

    Several processes may write the same path at once: the last rename wins.

    Raises:
        TrainkitError: the disk is full, read-only, or otherwise refuses.
    """
    temporary = path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    with refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("wb")
    try:
        yield _Guarded(file, path)  # type: ignore[misc]
        with refusals(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk that refused the data may refuse the rest of the buffer again
            file.close()
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


class _Guarded:
    """Only `write`, and a disk's refusal told apart from an `OSError` of what is being read meanwhile."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def write(self, data: bytes | memoryview) -> int:
        with refusals(self._path):
            return self._file.write(data)


def sync_directory(directory: Path) -> None:
    """Make the renames in a directory last. Raises TrainkitError."""
    with refusals(directory):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(directory: Path) -> None:
    """Remove what writers that were killed long ago left behind."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may have swept it, or may be about to rename it
            if time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()
