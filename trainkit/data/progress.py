"""How far the caching is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

_INTERVAL = 0.2


@dataclass(frozen=True)
class CachingProgress:
    """So far, of one thing that is being done.

    `what` is "files" (being read for their digests), "tokenizer" (being trained), "train" or the name of a validation
    set (being tokenised), "shards" (being compared with their checksums). `bytes` are those of the files for "files"
    and "shards", else of the text in UTF-8; their total is estimated from the share of the sources that is done, and
    None until there is one. A document that is held out in parts counts in both splits.
    """

    what: str
    documents: int
    bytes: int
    tokens: int
    total_bytes: int | None
    done: bool


class Tokenised(Protocol):
    """What has been tokenised, such as a shard."""

    @property
    def documents(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def tokens(self) -> int: ...


Tell = Callable[[CachingProgress], None] | None
"""Who is told of it, if anybody."""


class Reporter:
    """Counts, from any thread; `tick` and `done`, in the caller's thread, pass on what is counted, at most 5 times a
    second but for the end, and only where it has changed.

    `source` is what the sources measure, in any unit: of units that are done, the text's bytes are compared with it.
    """

    def __init__(self, what: str, source: int, callback: Tell) -> None:
        self._what, self._source, self._callback = what, source, callback
        self._lock = threading.Lock()
        self._documents = self._bytes = self._tokens = 0
        self._source_done = self._bytes_done = 0
        self._told = time.monotonic()
        self._last: CachingProgress | None = None

    def add(self, *, documents: int = 0, bytes: int = 0, tokens: int = 0) -> None:
        with self._lock:
            self._documents += documents
            self._bytes += bytes
            self._tokens += tokens

    def add_shards(self, shards: Iterable[Tokenised]) -> None:
        """Count what shards hold that are there already."""
        for shard in shards:
            self.add(documents=shard.documents, bytes=shard.bytes, tokens=shard.tokens)

    def add_done(self, shards: Iterable[Tokenised], *, source: int) -> None:
        """So much of the sources is done, and has become these shards, which are counted already."""
        with self._lock:
            self._source_done += source
            self._bytes_done += sum(shard.bytes for shard in shards)

    @property
    def idle(self) -> bool:
        """Whether there was nothing to count."""
        return not (self._documents or self._bytes)

    def tick(self) -> None:
        if time.monotonic() - self._told >= _INTERVAL:
            self._told = time.monotonic()
            self._tell(done=False)

    def done(self) -> None:
        self._tell(done=True)

    def _tell(self, *, done: bool) -> None:
        if self._callback:
            total = None
            with self._lock:
                now = (self._documents, self._bytes, self._tokens)
                if self._source_done and self._source:
                    total = max(self._bytes, round(self._bytes_done * self._source / self._source_done))
            progress = CachingProgress(self._what, *now, total, done)
            if progress != self._last:
                self._last = progress
                self._callback(progress)
