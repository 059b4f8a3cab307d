"""How far the caching is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_INTERVAL = 0.2


@dataclass(frozen=True)
class Progress:
    """So far, of one thing that is being done.

    `what` is "files" (being read for their digests), "tokenizer" (being trained), "train" or the name of a validation
    set (being tokenised). `bytes` are those of the files for "files", else of the text in UTF-8; their total is known
    only where every file is plain text. A document that is held out in parts counts in both splits.
    """

    what: str
    documents: int
    bytes: int
    tokens: int
    total_bytes: int | None
    done: bool


class Reporter:
    """Counts, from any thread; `tick` and `done`, in the caller's thread, pass on what is counted, at most 5 times a
    second but for the end."""

    def __init__(self, what: str, total_bytes: int | None, callback: Callable[[Progress], None] | None) -> None:
        self._what, self._total, self._callback = what, total_bytes, callback
        self._lock = threading.Lock()
        self._documents = self._bytes = self._tokens = 0
        self._told = time.monotonic()

    def add(self, *, documents: int = 0, bytes: int = 0, tokens: int = 0) -> None:
        with self._lock:
            self._documents += documents
            self._bytes += bytes
            self._tokens += tokens

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
            now = (self._documents, self._bytes, self._tokens)
            self._callback(Progress(self._what, *now, self._total, done))
