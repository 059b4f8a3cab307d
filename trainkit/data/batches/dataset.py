"""Batches by their number, as pure functions of the recipe's seed, the tokens and the step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainkit.data.batches.examples import Examples, cut, examples_of, lengths_of, longest, padded_batch, read_rows
from trainkit.data.batches.layout import Batch, Layout
from trainkit.data.batches.order import Buckets, ExampleOrder, Mixture
from trainkit.data.batches.packing import PackingCounts
from trainkit.data.batches.spans import SpanExamples
from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.errors import TrainkitError
from trainkit.plan import DataSize
from trainkit.recipe import Recipe
from trainkit.recipe.sections.data import Window, is_padded
from trainkit.recipe.sections.source import Source
from trainkit.recipe.sections.stages import mixture_stages

#: The distance between the random keys of two sources, which both number their examples from 0, so that draws for
#: examples of the same number, such as masked tokens, are independent. (2 ** 32 over the golden ratio.)
_KEYS_APART = 0x9E3779B1


class BatchRow(NamedTuple):
    """One row of a batch: its example, its source, and where each of its spans of tokens comes from."""

    source: str
    example: int
    spans: tuple[tuple[SourceSpan, ...], ...]


class TrainSet:
    """The training batches of a recipe.

    Without weights all sources are one stream. With weights each source has an order and epochs of its own, and after
    every 1024 examples each has had its share of them, to an example or two.

    The cache may still be growing: a batch waits until its tokens are there, and does not depend on when that is.
    """

    def __init__(self, cache: Cache, recipe: Recipe) -> None:
        self._data, self._seed, self._reference = recipe.data, recipe.run.seed, recipe.task.reference
        self._batch_size, self._sizes = recipe.train.batch_size, recipe.batch_sizes
        self._step_lengths = recipe.step_lengths
        self._steps, self._wanted = recipe.train.steps, recipe.train.tokens
        weighted = recipe.data.train[0].weight is not None
        self._streams = cache.sources if weighted else (cache.train,)
        sources = recipe.data.train if weighted else recipe.data.train[:1]
        self._sources = [
            _Source(number, stream, source, cache.directory, recipe)
            for number, (stream, source) in enumerate(zip(self._streams, sources, strict=True))
        ]
        factors = (recipe.schedules and recipe.schedules.mixture) or {}
        self._stages = mixture_stages(recipe.data.train, factors)
        stages = [(self._sizes.before(begin), weights) for begin, weights in self._stages.items()]
        self._mixture = Mixture(stages, seed=self._seed) if weighted else None
        self._scheduled = recipe.schedules
        self._buckets: Buckets | None = None
        self._lengths = lengths_of(recipe.data.encoding, recipe.data.positions)

    def size(self) -> DataSize:
        """Return the size of one epoch. Waits and raises as `examples`."""
        return DataSize(
            examples=self.examples,
            batches=self.batches,
            tokens=sum(stream.tokens for stream in self._streams) if self._data.is_text else 0,
            documents=sum(stream.documents for stream in self._streams),
            bytes=sum(stream.bytes for stream in self._streams),
            tokens_per_batch=self._tokens_per_batch(),
        )

    @property
    def examples(self) -> int:
        """Return the number of examples in one epoch, after waiting for the whole cache.

        With weights it is that of all sources together, although in that time some examples are seen more than once and
        some not at all. Raises TrainkitError if a source has no example.
        """
        return sum(source.count() for source in self._sources)

    @property
    def batches(self) -> int | None:
        """Return the number of batches in one epoch with buckets; None without buckets, as a batch may be in two
        epochs."""
        return self._bucketed().batches if len(self._lengths) > 1 else None

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """Return the batch of the update from `step` to `step` + 1, with the arrays that `layout` lists.

        It depends on nothing but the recipe's seed, the tokens and the step.

        Args:
            rows: only these rows are read, in ascending order, as each of several hosts does.

        Raises:
            TrainkitError: a source has no example, or tokenising fails.
        """
        if len(self._lengths) > 1:
            which, length = self._bucketed()(step)
            mine = which if rows is None else which[rows[rows < len(which)]]
            count = self._batch_size if rows is None else len(rows)
            return padded_batch(self._sources[0].examples, self._streams[0], mine, count, length)
        index = self._sizes.before(step) + (np.arange(self._sizes.at(step)) if rows is None else rows)
        length = self._data.positions
        if self._mixture is None:
            return self._sources[0].read(index, length)
        sources, ranks = self._mixture(index)
        batch: Batch = {}
        for source in np.unique(sources).tolist():
            mine = np.flatnonzero(sources == source)
            for name, part in self._sources[source].read(ranks[mine], length).items():
                if name == "example":
                    part = part + np.uint32(source * _KEYS_APART % (1 << 32))
                if name not in batch:
                    batch[name] = np.empty((len(index), *part.shape[1:]), part.dtype)
                batch[name][mine] = part
        return batch

    def cut_batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """Return the batch as the step computes it: where sequences are still short, each row as several rows."""
        batch = self.batch(step, rows)
        return batch if len(self._step_lengths.values) == 1 else cut(batch, self._step_lengths.at(step))

    def rows(self, step: int) -> Iterator[BatchRow]:
        """Yield where each row of the batch of `step` comes from."""
        index = np.arange(self._sizes.before(step), self._sizes.before(step + 1))
        if len(self._lengths) > 1:
            for example in self._bucketed()(step)[0].tolist():
                yield BatchRow(self._sources[0].name, example, tuple(self._sources[0].examples.spans(example)))
            return
        sources, ranks = self._mixture(index) if self._mixture else (np.zeros_like(index), index)
        for source, rank in zip(sources.tolist(), ranks.tolist(), strict=True):
            example = int(self._sources[source].at(np.array([rank]))[0])
            yield BatchRow(self._sources[source].name, example, tuple(self._sources[source].examples.spans(example)))

    def layouts(self) -> dict[int, Layout]:
        """Return the layout of the largest batches for each length that they have; with buckets, waits for the whole
        cache."""
        if len(self._step_lengths.values) > 1:
            return self._cut_layouts()
        lengths = self._bucketed().occurring if len(self._lengths) > 1 else self._lengths
        nothing = np.zeros(0, np.int64)
        empty = {length: self._sources[0].examples.read(nothing, length) for length in lengths}
        reference = {
            name: ((self._batch_size, *shape), np.dtype(np.float32)) for name, shape in self._reference.items()
        }
        return {
            length: {name: ((self._batch_size, *array.shape[1:]), array.dtype) for name, array in batch.items()}
            | reference
            for length, batch in empty.items()
        }

    def _cut_layouts(self) -> dict[int, Layout]:
        """Return the layouts of batches whose rows are cut."""
        whole = self._sources[0].examples.read(np.zeros(0, np.int64), self._data.positions)
        found = {}
        for length in set(self._step_lengths.values):
            rows = self._batch_size * (self._data.positions // length)
            empty = cut(whole, length)
            found[length] = {name: ((rows, *array.shape[1:]), array.dtype) for name, array in empty.items()}
        return found

    def streams(self) -> list[tuple[str, Stream, Source]]:
        """Return the name, the tokens and the spec of each source; without weights all are one."""
        return [(own.name, stream, own.spec) for own, stream in zip(self._sources, self._streams, strict=True)]

    def epochs(self, step: int) -> dict[str, float]:
        """Return how often each source has been seen after `step` updates, without those for which that is
        unknown yet."""
        before = self._sizes.before(step)
        drawn = self._mixture.counts_before(before).tolist() if self._mixture else [before]
        if self._buckets:
            drawn = [step / self._buckets.batches * self._sources[0].count()]
        return {
            source.name: examples / total
            for source, examples in zip(self._sources, drawn, strict=True)
            if (total := source.total)
        }

    def schedule_values(self, step: int) -> dict[str, float]:
        """Return what [schedules] says about the batch of the update from `step` to `step` + 1, by metric."""
        found: dict[str, float] = {}
        if (spec := self._scheduled) is None:
            return found
        if spec.batch_size_key:
            found["schedules/batch_size"] = self._sizes.at(step)
        if spec.sequence_length:
            found["schedules/sequence_length"] = self._step_lengths.at(step)
        if spec.mixture:
            weights = next(weights for begin, weights in reversed(self._stages.items()) if begin <= step)
            named = zip(self._sources, weights, strict=True)
            found |= {f"schedules/mixture/{source.name}": weight / sum(weights) for source, weight in named}
        return found

    def _tokens_per_batch(self) -> float | None:
        """Return the mean over the run if the recipe gives its length in steps or tokens; else over an epoch.

        Where the size of batches changes it is that of the largest.
        """
        if not is_padded(self._data.encoding):
            return None
        means = np.array([source.mean_tokens() for source in self._sources])
        if self._mixture is None:
            batches = self.batches or self.examples / self._batch_size
            return float(means[0]) * self.examples / batches

        def tokens(steps: int) -> float:
            assert self._mixture is not None
            return float(self._mixture.counts_before(self._sizes.before(steps)) @ means)

        steps = self._steps or max(1, self.examples // self._batch_size)
        if (wanted := self._wanted) is not None:  # a stage may have longer documents than another
            most = wanted // max(1, int(min(self._sizes.values) * means.min())) + 2
            steps = max(1, bisect_left(range(most), True, key=lambda steps: tokens(steps) >= wanted))
        return tokens(steps) / (self._sizes.before(steps) / self._batch_size)

    def _bucketed(self) -> Buckets:
        if self._buckets is None:
            self._sources[0].count()
            sizes = longest(self._sources[0].examples.sizes())
            shuffled = self._data.shuffle is not False
            self._buckets = Buckets(sizes, self._lengths, self._batch_size, shuffled=shuffled, seed=self._seed)
        return self._buckets


class _Source:
    """One stream, its examples and their order.

    Attributes:
        total: its examples in one epoch, once that is known.
    """

    def __init__(self, number: int, stream: Stream, source: Source, cache: Path, recipe: Recipe) -> None:
        data = recipe.data
        weighted = source.weight is not None
        self._where = f"data.train.{number}" if weighted else "data.train"
        self.name = (source.name or f"source-{number}") if weighted else "train"
        self.examples: Examples = examples_of(stream, source, data, cache, shifted=recipe.task.shifted)
        self.spec, self._stream = source, stream
        self._shuffle, self._seed, self._name = data.shuffle, recipe.run.seed, f"source {number}"
        self.total: int | None = None
        self._growing = None if data.shuffle == "full" else self._order(None)
        self._final: ExampleOrder | None = None

    def count(self) -> int:
        """Return its examples in one epoch; waits until that is known."""
        if self.total is None:
            self._settle(self.examples.wait(None))
        assert self.total is not None
        return self.total

    def at(self, index: np.ndarray) -> np.ndarray:
        """Return which example comes at each of `index`, rising, counted over all epochs; waits until they exist."""
        if self._final is None:
            window = self._shuffle.window if isinstance(self._shuffle, Window) else 1
            needed = None if self._growing is None else (int(index[-1]) // window + 1) * window
            self._settle(self.examples.wait(needed))
        order = self._final or self._growing
        assert order is not None
        return order(index)

    def read(self, index: np.ndarray, length: int) -> Batch:
        return read_rows(self.examples, self._stream, self.at(index), length)

    def mean_tokens(self) -> float:
        """Return the mean number of tokens of an example, without padding; waits until all examples exist."""
        return float(self.examples.sizes().sum()) / self.count()

    def _settle(self, total: int | None) -> None:
        if total is None:
            return
        if total < 1 or self._stream.tokens < 2:
            raise TrainkitError(
                f"{self._stream.tokens:,} tokens in {self._stream.documents:,} documents make no example",
                where=self._where,
                hint="give more text, or a smaller data.encoding.min_length",
            )
        self.total, self._final = total, self._order(total)

    def _order(self, total: int | None) -> ExampleOrder:
        return ExampleOrder(total, shuffle=self._shuffle, seed=self._seed, name=self._name)


def counts_of(stream: Stream, source: Source, recipe: Recipe, cache: Path) -> PackingCounts | None:
    """Return what the encoding leaves out of a complete stream; None if it leaves out nothing."""
    examples = examples_of(stream, source, recipe.data, cache, shifted=recipe.task.shifted)
    if not isinstance(examples, SpanExamples) or not examples.wait(None):
        return None
    return examples.counts
