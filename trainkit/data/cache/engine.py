"""Who tokenises: the threads of this process. What is to be done is plain data, so that it can be sent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from trainkit.data import jobs, storage
from trainkit.data.cache import shards
from trainkit.data.cache.encode import encode
from trainkit.data.cache.shards import Encoding, Parts
from trainkit.data.jobs import Later, Reporter, Stop
from trainkit.data.sources.units import Unit
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer


@dataclass(frozen=True)
class CacheWork:
    """A unit that is to be tokenised."""

    unit: Unit
    encoding: Encoding
    cache: Path
    tokenizer: LoadedTokenizer | None
    on_error: str

    def do(self, reporter: Reporter, stop: Stop) -> Parts:
        """The shards of the unit: those that are there, or that are made now.

        Raises:
            Later: another process makes them.
            TrainkitError: as `encode`.
        """
        first = self.encoding.splits[0]
        there = shards.of_unit(self.cache, self.unit, self.encoding, self.on_error)
        if there and there[-1][first].last:
            reporter.add_shards(shards.all_shards(there))
        else:
            with storage.claim(self.cache / "locks" / shards.key_of(self.unit, first, self.encoding)) as mine:
                if not mine:
                    raise Later
                there = encode(
                    self.unit,
                    self.encoding,
                    cache=self.cache,
                    tokenizer=self.tokenizer,
                    on_error=self.on_error,
                    reporter=reporter,
                    stop=stop,
                )
        reporter.add_done(shards.all_shards(there), source=self.unit.size)
        return there


class Engine(Protocol):
    def __call__(
        self,
        work: Sequence[CacheWork],
        *,
        wanted: Callable[[int], bool],
        on_result: Callable[[int, Parts | None], None],
        reporter: Reporter,
        stop: Stop,
    ) -> None:
        """Do all of it, in about this order, and call `on_result` with each number and what became of it, in this
        thread. What is not `wanted` any more when its turn comes is not done: None. Calls `reporter.tick` every so
        often. The first error ends the rest and is raised; `stop` raises `Stopped`."""


def threads(workers: int | None = None) -> Engine:
    """The threads of this process: as many as there are cores, but at most 4, where not given."""

    def run(
        work: Sequence[CacheWork],
        *,
        wanted: Callable[[int], bool],
        on_result: Callable[[int, Parts | None], None],
        reporter: Reporter,
        stop: Stop,
    ) -> None:
        def job(index: int, stop: Stop) -> Parts | None:
            return work[index].do(reporter, stop) if wanted(index) else None

        jobs.run(
            [partial(job, index) for index in range(len(work))],
            workers=workers or jobs.WORKERS,
            tick=reporter.tick,
            on_result=on_result,
            stop=stop,
        )

    return run
