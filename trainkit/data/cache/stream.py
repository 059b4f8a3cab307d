"""Streams: tokens one after the other in several shards, to which more may still be added."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trainkit.data.cache import arrays as of_shards
from trainkit.data.cache import shards
from trainkit.data.cache.arrays import Arrays, FileArrays
from trainkit.data.cache.section import Section, SourceSpan
from trainkit.data.cache.shards import Shard
from trainkit.data.storage import Version
from trainkit.errors import FAILED, TrainkitError
from trainkit.files import Damaged

T = TypeVar("T")


class Stream:
    """The tokens of one or several sources in one split, one after the other.

    One thread adds tokens, others read. Tokens that were added never change.

    Attributes:
        sections: its shards so far.
        tokens, documents, bytes: totals so far; end-of-text tokens count, bytes are those of the text in UTF-8.
        marked: whether some of the tokens so far may not be targets.
        begins: whether every document begins with the beginning-of-text token.
        between: how many special tokens end the first text of a pair.
        complete: whether nothing more will be added.
        columns: arrays (examples, …) that were computed of its examples, by their names in a batch.
    """

    def __init__(self, cache: Path, dtype: str, *, begins: bool = False, between: int = 0) -> None:
        self._cache, self.begins, self.between = cache, begins, between
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.sections: list[Section] = []
        self.tokens = self.documents = self.bytes = 0
        self.marked = self.complete = False
        self.columns: dict[str, np.ndarray] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._arrays: list[Arrays] = []
        self._bytes: list[memoryview] = []
        self._sizes: list[int] = []
        self._first_bytes: list[int] = []
        self._mapped = 0
        #: Which versions of the shards match their checksums; nobody has used the others yet.
        self._checked: dict[int, Version] = {}
        self._checking = threading.Lock()
        self._firsts = self._lengths = np.zeros(0, np.int64)

    def extend(self, sections: Sequence[Section]) -> None:
        """Add sections at the end."""
        with self._changed:
            self.sections += [section for section in sections if section.tokens]
            self.marked |= any(section.shard.marked for section in sections)
            self.tokens += sum(section.tokens for section in sections)
            self.documents += sum(section.documents for section in sections)
            self.bytes += sum(section.bytes for section in sections)
            self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        """End the stream: it is complete, or `error` is raised to those who wait for more."""
        with self._changed:
            self.complete, self._error = error is None, error
            self._changed.notify_all()

    def wait(self, tokens: int | None, *, seconds: float | None = None) -> None:
        """Wait until there are `tokens` tokens, or the stream is complete, or `seconds` have passed.

        Raises the error that ended the stream before that.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.complete or self._error or (tokens is not None and self.tokens >= tokens), seconds
            )
            if self._error and (tokens is None or self.tokens < tokens):
                raise self._error

    def examples(self, length: int, *, shift: int = 1) -> int:
        """Return the number of examples of `length` targets. Each token but the first `shift` is a target of one."""
        return max(0, -(-(self.tokens - shift) // length))

    def first_of(self, number: int) -> int:
        """Return the token with which a section begins."""
        self._map()
        return int(self._firsts[number])

    def label_at(self, start: int) -> Any:
        """Return the label of the document that token `start` belongs to; the documents must have labels."""
        self._map()
        number = int(np.searchsorted(self._firsts, start, side="right")) - 1
        self._check(number)
        return self._arrays[number].label_at(start - int(self._firsts[number]))

    def arrays(self, number: int) -> Arrays:
        """Return the arrays of a section's whole shard, after comparing it with its checksum if it may have changed.

        Raises TrainkitError if it is damaged.
        """
        arrays = self.unverified_arrays(number)
        self._check(number)
        return arrays

    def unverified_arrays(self, number: int) -> Arrays:
        """Return the arrays of a section's whole shard as they are, for what has checked it."""
        self._map()
        return self._arrays[number]

    def file_arrays(self, number: int) -> FileArrays:
        """Return the arrays of a section's whole shard, unchecked, for what looks at all shards before training.

        Each raises TrainkitError if the shard's file is gone or cut off.
        """
        shard = self.sections[number].shard

        def read(start: int, size: int) -> bytes:
            return self._refuse_unreadable(partial(of_shards.read_part, start=start, size=size), shard)

        return FileArrays(shard, read)

    def windows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return `width` tokens from each of `starts`, (n,): (n, width), with 0 after the last token; read-only.

        Rows are gathered one by one, as bytes: with many shards no numpy operation on all rows is faster.
        """
        self._map()
        item, size = self.dtype.itemsize, width * self.dtype.itemsize
        views, sizes, firsts = self._bytes, self._sizes, self._first_bytes
        rows: list[memoryview | bytes] = []
        used = set()
        for start in (starts * item).tolist():
            number = bisect_right(firsts, start) - 1
            offset = start - firsts[number]
            end = offset + size
            used.add(number)
            rows.append(views[number][offset:end] if end <= sizes[number] else self._across(number, offset, size))
        for number in used:  # nothing was read of them yet
            self._check(number)
        return np.frombuffer(b"".join(rows), self.dtype).reshape(len(starts), width)

    def _across(self, number: int, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` of a section on, across sections, with 0 behind the last."""
        parts = []
        while size and number < len(self._bytes):
            self._check(number)
            part = self._bytes[number][offset : min(offset + size, self._sizes[number])]
            parts.append(part)
            size, number, offset = size - len(part), number + 1, 0
        return b"".join([*parts, bytes(size)])

    def marks(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the marks of the same tokens, uint8 (n, width); `LEARNED` where a shard has none."""
        self._map()
        rows = np.full((len(starts), width), shards.LEARNED, np.uint8)
        self._check_windows(starts, width)
        which = np.searchsorted(self._firsts, starts, side="right") - 1
        for row, number, start in zip(rows, which.tolist(), (starts - self._firsts[which]).tolist(), strict=True):
            filled = 0
            for section, offset, count in self._runs(number, start, width):
                marks = self._arrays[section].marks
                if marks is not None:
                    row[filled : filled + count] = marks[offset : offset + count]
                filled += count
        return rows

    def borders(self, start: int, width: int) -> np.ndarray:
        """Return where documents end within the tokens `start` … `start + width - 1`, relative to `start`, (ends,): i +
        1 if token i is the last of a document."""
        self._map()
        borders = [np.zeros(0, np.int64)]
        filled = 0
        number = int(np.searchsorted(self._firsts, start, side="right")) - 1
        for section, offset, count in self._runs(number, start - int(self._firsts[number]), width):
            ends = self._arrays[section].ends
            # in the dtype of the ends, which would be copied to be compared with another
            low, high = ends.searchsorted(np.array([offset, offset + count], ends.dtype), "right")
            borders.append(ends[low:high].astype(np.int64) - offset + filled)
            filled += count
        return np.concatenate(borders)

    def places(self, start: int, width: int) -> Iterator[SourceSpan]:
        """Yield the documents that the tokens `start` … `start + width - 1` are from."""
        self._map()
        number = int(np.searchsorted(self._firsts, start, side="right")) - 1
        for section, offset, count in self._runs(number, start - int(self._firsts[number]), width):
            arrays = self.arrays(section)
            position = offset
            while position < offset + count:
                document = int(arrays.ends.searchsorted(arrays.ends.dtype.type(position), "right"))
                begin = int(arrays.ends[document - 1]) if document else 0
                inside = document < len(arrays.ends)
                last = int(arrays.ends[document]) if inside else int(self._lengths[section])
                end = min(offset + count, last)
                # a document that continues in the next shard is recorded there
                record = arrays.documents[document] if inside else self._record_after(section)
                file, index, *_ = record.item() if record is not None else (0, 0)
                yield SourceSpan(self.sections[section], file, index, position - begin, end - begin, last - begin)
                position = end

    def _record_after(self, section: int) -> np.void | None:
        for arrays in self._arrays[section + 1 :]:
            if len(arrays.documents):
                return arrays.documents[0]
        return None

    def _runs(self, section: int, offset: int, width: int) -> Iterator[tuple[int, int, int]]:
        """Yield (section, offset in it, tokens) that together are `width` tokens, or as many as there are."""
        while width and section < len(self._arrays):
            count = min(width, int(self._lengths[section]) - offset)
            if count > 0:
                yield section, offset, count
            width, section, offset = width - max(0, count), section + 1, 0

    def _map(self) -> None:
        """Map the sections that were added since the last call."""
        if self._mapped == len(self.sections):
            return
        with self._changed:
            for section in self.sections[len(self._arrays) :]:
                self._arrays.append(self.open(section.shard))
            for section, arrays in list(zip(self.sections, self._arrays, strict=False))[self._mapped :]:
                self._bytes.append(arrays.tokens.data.cast("B"))
                self._sizes.append(section.tokens * self.dtype.itemsize)
            self._lengths = np.array([section.tokens for section in self.sections], np.int64)
            self._firsts = np.cumsum(self._lengths) - self._lengths
            self._first_bytes = (self._firsts * self.dtype.itemsize).tolist()
            self._mapped = len(self._arrays)

    def _check_windows(self, starts: np.ndarray, width: int) -> None:
        """Check the sections that hold `width` tokens from each of `starts`."""
        first, last = (np.searchsorted(self._firsts, at, side="right") - 1 for at in (starts, starts + width - 1))
        for begin, end in set(zip(first.tolist(), last.tolist(), strict=True)):
            for number in range(begin, end + 1):
                self._check(number)

    def _check(self, number: int) -> None:
        """Compare the shard of a section with its checksum, if that was not done since its file was written to.

        Raises TrainkitError if it is damaged: to train on it would be to train on other data without knowing.
        """
        checked = self._checked.get(number)
        if checked is None or checked.is_overwritten():
            with self._checking:
                self._checked[number] = self._refuse_unreadable(shards.check, self.sections[number].shard)

    def open(self, shard: Shard) -> Arrays:
        """Map a shard into memory. Raises TrainkitError."""
        return self._refuse_unreadable(of_shards.open_arrays, shard)

    def _refuse_unreadable(self, read: Callable[[Path, Shard], T], shard: Shard) -> T:
        try:
            return read(self._cache, shard)
        except (OSError, ValueError) as error:
            damaged = isinstance(error, Damaged)
            raise TrainkitError(
                f"cannot read a shard of the cache: {error}",
                where=str(shards.path_of(self._cache, shard.key)),
                hint=f"trainkit cache-data RECIPE{' --repair' * damaged} makes it again",
                exit_code=FAILED,
            ) from error
