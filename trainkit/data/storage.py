"""Files of the cache: written whole or not at all, and mapped into memory.

A file is written beside its place, synced, and renamed. What a disk refuses becomes a `TrainkitError` with the path.

Maps keep no descriptor open. CPython's `mmap` (before 3.13), and `np.memmap` with it, keeps a duplicate of the file's
descriptor for as long as the map lives: a cache of a thousand shards would reach the usual limit of 1,024. The kernel
needs none once a file is mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from trainkit import files
from trainkit.errors import TrainkitError
from trainkit.redaction import redact

_TEMPORARY = ".tmp-"
#: The file of a cache that each process which uses the cache locks, together with others.
_IN_USE = "in-use"
#: Seconds without a write after which the file of a killed writer is removed.
_ABANDONED = 24 * 3600
_REBUILD = 'rebuild it: trainkit cache-data RECIPE --rebuild; or use another directory: --set data.cache="DIRECTORY"'


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn an `OSError` of writing to `path` into a TrainkitError."""
    try:
        yield
    except OSError as error:
        raise TrainkitError(
            f"cannot write the token cache: {error.strerror or error}",
            where=str(path),
            hint='make room there or permit writing, or choose another directory: --set data.cache="DIRECTORY"',
        ) from error


@contextlib.contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write. It appears at `path` when the block ends, and not at all if the block raises.

    Several processes may write the same path at once: the last rename wins.

    Raises:
        TrainkitError: the disk is full, read-only, or otherwise refuses.
    """
    temporary = path.with_name(f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}")
    with refusals(path):
        files.make_directory(path.parent)
        file = temporary.open("wb")
    try:
        yield _Guarded(file, path)  # type: ignore[misc]
        with refusals(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.rename(path)
            files.sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the disk that refused the data may refuse the rest of the buffer again
            file.close()
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write or replace a file with a JSON object and its checksum, for `files.read_json`. Raises TrainkitError."""
    with write_file(path) as out:
        out.write(files.seal(redact(json.dumps(value, indent=1))).encode())


class _Guarded:
    """Has only `write`, which distinguishes a refusal by the disk from an `OSError` of what is read meanwhile."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def write(self, data: bytes | memoryview) -> int:
        with refusals(self._path):
            return self._file.write(data)


def check_format(cache: Path, versions: Collection[int]) -> None:
    """Raise TrainkitError if the cache was made by a version of trainkit whose files cannot be used beside today's."""
    try:
        version = files.read_json(cache / "format.json")["format"]
    except (FileNotFoundError, NotADirectoryError):
        # the first version wrote no such file
        if not (cache / "shards").is_dir():
            return
        version = 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainkitError(f"cannot read it: {error}", where=str(cache / "format.json"), hint=_REBUILD) from error
    if version not in versions:
        raise TrainkitError(
            f"the token cache was made by another version of trainkit: found format {version}, needed {max(versions)}",
            where=str(cache),
            hint=_REBUILD,
        )


def write_format(cache: Path, version: int) -> None:
    """Write the format of a new cache. Raises TrainkitError."""
    if not (cache / "format.json").exists():
        write_json(cache / "format.json", {"format": version})


def remove(cache: Path) -> None:
    """Remove what was made from the sources, and nothing else in the directory. Tokenizers and the commits of the hub
    stay, for the runs that began with them. Raises TrainkitError."""
    with refusals(cache):
        for name in ("digests", "shards", "frames", "ledgers", "apart", "rejected", "locks"):
            if (cache / name).is_dir():
                shutil.rmtree(cache / name)
        (cache / "format.json").unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """Remove the files of writers that were killed long ago."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # another process may have swept it, or may be about to rename it
            if time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Yield whether this thread of this process holds the lock `path` until the block ends. Never waits.

    On a file system without locks everybody gets True: work that is done twice is still correct.
    """
    with refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            yield True
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


class Use:
    """Keeps `all_to_oneself` from giving a cache to another process, for as long as this object exists.

    On a file system without locks it does nothing; there nobody gets a cache to himself either.
    """

    def __init__(self, cache: Path) -> None:
        self._release: Callable[[], object] = lambda: None
        with contextlib.suppress(OSError):
            descriptor = os.open(cache / _IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            self._release = weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for a moment while somebody removes what is unused

    @contextlib.contextmanager
    def unless_failed(self) -> Iterator[None]:
        """End the use of the cache if the block raises."""
        try:
            yield
        except BaseException:
            self._release()
            raise


@contextlib.contextmanager
def all_to_oneself(cache: Path) -> Iterator[bool]:
    """Yield whether no process uses a cache, nor will before the block ends. Never waits. Raises TrainkitError."""
    with refusals(cache):
        descriptor = os.open(cache / _IN_USE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def map_file(path: Path, size: int | None = None) -> np.ndarray:
    """Return the first `size` bytes of a file, or all of them: uint8, (size,), read-only.

    The map lives as long as any view of it.

    Raises:
        OSError: the file cannot be opened, or the system permits no further map.
        ValueError: the file has fewer bytes, or none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_now = os.fstat(descriptor).st_size
        wanted = size_now if size is None else size
        if not 0 < wanted <= size_now:
            raise ValueError(f"it has {size_now:,} bytes instead of {wanted:,}" if wanted else "it is empty")
        address = _libc().mmap(None, wanted, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        many = " (the system limits the number of maps: sysctl vm.max_map_count)" if code == errno.ENOMEM else ""
        raise OSError(code, f"{os.strerror(code)}{many}", str(path))
    return np.asarray(_Map(address, wanted))


class Version(NamedTuple):
    """Which file was at a path, and when it was last written to."""

    path: str
    inode: int
    size: int
    written: int
    """In nanoseconds since 1970."""

    @classmethod
    def of(cls, path: Path) -> Version:
        """Return the present version. Raises OSError."""
        status = path.stat()
        return cls(str(path), status.st_ino, status.st_size, status.st_mtime_ns)

    def is_overwritten(self) -> bool:
        """Return whether this file was written to since: to read a map of one that was cut off would kill the process.

        A file that was deleted or replaced does not matter: its map stays whole.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        now = status.st_size, status.st_mtime_ns
        return status.st_ino == self.inode and now != (self.size, self.written)


class _Map:
    """Owns mapped memory; an array made of it refers to it."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, True)}
        unmap = weakref.finalize(self, _libc().munmap, address, size)
        unmap.atexit = False  # a thread may still be reading when the interpreter ends


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, length = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = pointer
    # the offset is always 0, so its width does not matter
    libc.mmap.argtypes = (pointer, length, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t)
    libc.munmap.argtypes = (pointer, length)
    return libc
