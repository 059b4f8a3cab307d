"""Jobs in threads, which Ctrl-C ends at once, and how far they are.

Tokenising spends its time in Rust with Python's lock released, and `encode_batch_fast` divides a batch among all cores
by itself. On 2 cores threads that call it were as fast as spawned processes or faster. So: threads, which also share
one huge file among all cores, and start in no time.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

#: Threads where nobody says how many.
WORKERS = min(4, os.cpu_count() or 1)
#: Seconds before a job that another process does is looked at again.
LATER = 0.1
#: Seconds between two calls of `tick` while no job ends.
_INTERVAL = 0.2
#: Seconds at least between two reports of progress.
_REPORT_INTERVAL = 0.2


class Stopped(Exception):
    """Raised within a job once its work is not wanted any more."""


class Later(Exception):
    """Raised by a job that cannot be done now: it is tried again once the others are done or under way."""


class Stop:
    """Asks the jobs to end; they call `check` every so often."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def check(self) -> None:
        if self._event.is_set():
            raise Stopped

    def set(self) -> None:
        self._event.set()


class _Outcome(Generic[T]):
    def __init__(self, index: int, result: T | None, error: BaseException | None) -> None:
        self.index, self.result, self.error = index, result, error


def run(
    jobs: Sequence[Callable[[Stop], T]],
    *,
    workers: int,
    tick: Callable[[], None],
    on_result: Callable[[int, T], None] = lambda index, result: None,
    stop: Stop | None = None,
) -> list[T]:
    """The results of all jobs, in their order.

    `tick` is called a few times a second, and `on_result` with each result as it comes, in the caller's thread.
    Jobs begin in their order. Where one fails, those before it are finished, and the error of the first that failed is
    raised: the same whatever the number of workers. KeyboardInterrupt is raised without waiting for a long job; and so
    is `stop` where somebody sets it, as `Stopped`.
    """
    stop = stop or Stop()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    limit = len(jobs)  # no job from there on is begun

    def work() -> None:
        nonlocal limit
        while True:
            try:
                stop.check()
                index = waiting.get_nowait()
            except (Stopped, queue.Empty):
                return
            if index >= limit:
                continue
            try:
                done.put(_Outcome(index, jobs[index](stop), None))
            except Later:
                time.sleep(LATER)
                waiting.put(index)
            except BaseException as error:  # handed to the caller's thread, which raises it
                limit = min(limit, index)
                done.put(_Outcome(index, None, error))

    # daemons: a job that is deep in Rust must not keep the process from ending
    threads = [threading.Thread(target=work, name="data", daemon=True) for _ in range(min(workers, len(jobs)))]
    results: dict[int, T] = {}
    wanted, failure = len(jobs), None
    try:
        for thread in threads:
            thread.start()
        while len(results) < wanted:
            stop.check()
            try:
                outcome = done.get(timeout=_INTERVAL)
            except queue.Empty:
                tick()
                continue
            if outcome.index >= wanted:
                continue
            if outcome.error is not None:
                wanted, failure = outcome.index, outcome.error
                results = {index: result for index, result in results.items() if index < wanted}
            else:
                results[outcome.index] = outcome.result  # type: ignore[assignment]
                on_result(outcome.index, results[outcome.index])
            tick()
        if failure is not None:
            raise failure
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=2)
    return [results[index] for index in range(len(jobs))]


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
        if time.monotonic() - self._told >= _REPORT_INTERVAL:
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
