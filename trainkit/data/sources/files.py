"""Opening files that may be compressed or remote."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.files import SCHEME
from trainkit.redaction import MASK

#: Suffixes of files that are decompressed while they are read.
COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
#: What opening and reading a damaged compressed stream raises. Failures of the disk or the network raise TrainkitError.
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, OSError)


def is_remote(path: str) -> bool:
    """Return whether a path is a URL of a file on another machine."""
    return bool(SCHEME.match(path)) and not path.startswith("file://")


def suffixes(path: str) -> tuple[str, str]:
    """Return the suffix of the format of a file, and that of its compression or nothing: `.jsonl` and `.gz`."""
    if path.startswith(("http://", "https://")):
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    bare, last = os.path.splitext(path.lower())
    return (os.path.splitext(bare)[1], last) if last in COMPRESSED else (last, "")


def _host_of(url: str) -> str:
    """Return the host that a URL names; empty if it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def why_unusable(url: str) -> tuple[str, str] | None:
    """Return why a URL can certainly not be opened, and what to do; None if its store may open it. Asks no store."""
    from importlib.util import find_spec

    from fsspec.registry import known_implementations, registry

    scheme = cast(re.Match[str], SCHEME.match(url))[1]
    if MASK in url:
        return (
            f"its password or token is missing: {MASK} stands in its place",
            f"write the secret instead of {MASK}; a run has the secrets of its recipe in its secrets.json",
        )
    if scheme in ("http", "https") and not _host_of(url):
        return "names no host", f"write {scheme}://HOST/FILE"
    if "::" in url:
        return "is a chain of URLs, which is not supported", "name the files themselves"
    if scheme in registry:
        return None
    if scheme not in known_implementations:
        return f"{scheme}:// is not a supported kind of URL", "s3://, gs://, az://, hf:// and https:// are"
    package = known_implementations[scheme]["class"].partition(".")[0]
    if find_spec(package) is None:
        return f"{scheme}:// needs the package {package}, which is not installed", "install it beside trainkit"
    return None


@contextlib.contextmanager
def store_of(url: str, *, listings: bool = True) -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL and the path in it. Whatever it raises becomes a TrainkitError.

    Without `listings` it is a separate file system object, which does not remember directory listings.
    """
    if (MASK in url or "::" in url) and (problem := why_unusable(url)) is not None:
        raise TrainkitError(problem[0], where=url, hint=problem[1])
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    scheme = cast(re.Match[str], SCHEME.match(url))[1]
    try:
        yield url_to_fs(url) if listings else url_to_fs(url, use_listings_cache=False)
    except TrainkitError:
        raise
    except ImportError as error:
        raise TrainkitError(
            f"{scheme}:// needs a package that is not installed: {error}", where=url, hint="install it beside trainkit"
        ) from error
    except FileNotFoundError as error:
        raise TrainkitError("no such file", where=url) from error
    # each store has its own library with its own errors
    except Exception as error:
        if scheme not in known_implementations:
            raise TrainkitError(
                f"{scheme}:// is not a supported kind of URL",
                where=url,
                hint="s3://, gs://, az://, hf:// and https:// are",
            ) from error
        raise TrainkitError(f"cannot be read: {type(error).__name__}: {error}", where=url) from error


class _Watched(io.RawIOBase):
    """A file whose reading raises TrainkitError when the disk or the network fails, unlike damaged content."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._file.readinto(buffer))
        # each store has its own library with its own errors
        except Exception as error:
            raise TrainkitError(f"cannot read it: {error}", where=self._path) from error

    def close(self) -> None:
        self._file.close()
        super().close()


def open_raw(path: str) -> io.BufferedReader:
    """Return the bytes of a local file or a URL as they are stored.

    Raises:
        TrainkitError: it cannot be opened; reading raises it too if the disk or the network fails.
    """
    if is_remote(path):
        with store_of(path) as (store, inside):
            return io.BufferedReader(_Watched(store.open(inside, "rb"), path), 1 << 18)
    try:
        return io.BufferedReader(_Watched(open(path, "rb", buffering=0), path), 1 << 18)
    except OSError as error:
        raise TrainkitError(f"cannot read it: {error.strerror or error}", where=path) from error


def open_binary(path: str) -> BinaryIO:
    """Return the same, decompressed if the name ends in `.gz`, `.zst`, `.bz2` or `.xz`, also of several members.

    Raises:
        TrainkitError: as `open_raw`.
        one of `DAMAGED`: the compressed stream is damaged or cut off; reading raises it too.
    """
    raw = open_raw(path)
    _, compression = suffixes(path)
    if compression and not raw.peek(1):
        raise EOFError("it is empty")
    match compression:
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        case ".bz2":
            return cast(BinaryIO, bz2.BZ2File(raw))
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
        case ".zst":
            import pyarrow

            return cast(BinaryIO, io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 18))
    return cast(BinaryIO, raw)


def chunks(stream: BinaryIO, size: int = 1 << 20) -> Iterator[bytes]:
    """Yield the rest of a stream in pieces of at most `size` bytes."""
    while chunk := stream.read(size):
        yield chunk
