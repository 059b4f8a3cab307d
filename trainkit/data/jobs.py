"""Running jobs in threads, in a way that Ctrl-C ends at once.

Tokenising spends its time in Rust with Python's lock released, and `encode_batch_fast` divides a batch among all cores
by itself. On 2 cores threads that call it were as fast as spawned processes or faster. So: threads, which also share
one huge file among all cores, and start in no time.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

#: Threads where nobody says how many.
WORKERS = min(4, os.cpu_count() or 1)
#: Seconds before a job that another process does is looked at again.
LATER = 0.1
#: Seconds between two calls of `tick` while no job ends.
_INTERVAL = 0.2


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
