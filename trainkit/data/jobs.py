"""Jobs in threads, which Ctrl-C ends at once, and how far they are.

Tokenising spends its time in Rust with Python's lock released, and `encode_batch_fast` divides a batch among all cores
by itself. On 2 cores threads that call it were as fast as spawned processes or faster. So: threads, which also share
one huge file among all cores, and start in no time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

#: Threads by default.
WORKERS = min(4, os.cpu_count() or 1)
#: Seconds until a job that another process does is tried again.
LATER = 0.1
#: Seconds between two calls of `tick` while no job ends.
_INTERVAL = 0.2
#: Seconds at least between two reports of progress.
_REPORT_INTERVAL = 0.2


class Stopped(Exception):
    """Raised within a job once its work is no longer wanted."""


class Later(Exception):
    """Raised by a job that cannot be done now; it is tried again after the others."""


class Stop:
    """Asks jobs to end. They call `check` often, which raises `Stopped`."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def check(self) -> None:
        """Raise `Stopped` once the jobs are to end."""
        if self._event.is_set():
            raise Stopped

    def set(self) -> None:
        """Ask the jobs to end."""
        self._event.set()


class Interrupt:
    """Whether a Ctrl-C came."""

    came = False

    def check(self) -> None:
        """Raise KeyboardInterrupt after a Ctrl-C."""
        if self.came:
            raise KeyboardInterrupt


@contextlib.contextmanager
def remember_interrupt() -> Iterator[Interrupt]:
    """Raise KeyboardInterrupt at the end of the block, or in place of its error, if a Ctrl-C came within it.

    Python drops a KeyboardInterrupt that comes during a destructor or a callback, and a library may turn it into an
    error of its own: workers of Ray, which a terminal interrupts too, report that their tasks were cancelled.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def remember(number: int, frame: FrameType | None) -> None:
        interrupt.came = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupt
        interrupt.check()
    except BaseException as error:
        if interrupt.came and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


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
    """Return the results of all jobs, in their order.

    `tick` is called a few times a second, and `on_result` with each result as it comes, in the caller's thread.
    Jobs begin in their order. If one fails, the jobs before it are finished, and the error of the first that failed is
    raised, the same for any number of workers. KeyboardInterrupt, and `Stopped` after `stop` is set, are raised
    without waiting for a long job.
    """
    stop = stop or Stop()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Outcome[T]] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    limit = len(jobs)  # no job from this one on is started

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

    # daemons, so that a job that runs in Rust does not keep the process from ending
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
    """How much of one piece of work is done.

    `what` is "files" (read for their digests), "tokenizer" (trained), "train" or the name of a validation set
    (tokenised), or "shards" (compared with their checksums). `bytes` are those of the files for "files" and "shards",
    otherwise of the text in UTF-8; `total_bytes` is estimated from the share of the sources that is done, and None
    before that. A document that is held out in parts counts in both splits.
    """

    what: str
    documents: int
    bytes: int
    tokens: int
    total_bytes: int | None
    done: bool


class Tokenised(Protocol):
    """Something that was tokenised, such as a shard."""

    @property
    def documents(self) -> int:
        """Return the number of documents."""

    @property
    def bytes(self) -> int:
        """Return the bytes of their text in UTF-8."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""


Tell = Callable[[CachingProgress], None] | None
"""What is called with the progress, if anything."""


class Reporter:
    """Counts progress from any thread; `tick` and `done`, in the caller's thread, report it, at most 5 times a second
    except for the end, and only if it has changed.

    `source` is the size of the sources in any unit. The text bytes of finished units are compared with it.
    """

    def __init__(self, what: str, source: int, callback: Tell) -> None:
        self._what, self._source, self._callback = what, source, callback
        self._lock = threading.Lock()
        self._documents = self._bytes = self._tokens = 0
        self._source_done = self._bytes_done = 0
        self._reported = time.monotonic()
        self._last: CachingProgress | None = None

    def add(self, *, documents: int = 0, bytes: int = 0, tokens: int = 0) -> None:
        """Count more documents, bytes and tokens."""
        with self._lock:
            self._documents += documents
            self._bytes += bytes
            self._tokens += tokens

    def add_shards(self, shards: Iterable[Tokenised]) -> None:
        """Count the content of shards that exist already."""
        for shard in shards:
            self.add(documents=shard.documents, bytes=shard.bytes, tokens=shard.tokens)

    def add_done(self, shards: Iterable[Tokenised], *, source: int) -> None:
        """Record that `source` of the sources is done and became these shards, which are counted already."""
        with self._lock:
            self._source_done += source
            self._bytes_done += sum(shard.bytes for shard in shards)

    @property
    def idle(self) -> bool:
        """Whether nothing was counted."""
        return not (self._documents or self._bytes)

    def tick(self) -> None:
        """Report the progress if it is time to."""
        if time.monotonic() - self._reported >= _REPORT_INTERVAL:
            self._reported = time.monotonic()
            self._report(done=False)

    def finish(self) -> None:
        """Report the progress as finished."""
        self._report(done=True)

    def _report(self, *, done: bool) -> None:
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
