"""The streams of a set while its units are tokenised: each grows by the finished units, without gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from trainkit.data.cache import ledger
from trainkit.data.cache.arrays import Arrays
from trainkit.data.cache.ledger import Ledger
from trainkit.data.cache.section import Section
from trainkit.data.cache.shards import Encoding, Parts, Shard
from trainkit.data.cache.stream import Stream
from trainkit.data.sources.splits import Split
from trainkit.data.sources.units import Unit


class Streams:
    """The streams of a set in one split: `each` source by itself, and `all` sources one after the other."""

    def __init__(self, streams: Iterator[Stream], sources: int) -> None:
        self.all, *self.each = islice(streams, 1 + sources)
        self._waiting: list[list[Section]] = [[] for _ in range(sources)]
        self._complete = [False] * sources
        self._next = 0

    def extend(self, source: int, sections: Sequence[Section]) -> None:
        """Add sections at the end of a source."""
        self.each[source].extend(sections)
        self._waiting[source] += sections
        self._pass_on()

    def finish(self, source: int) -> None:
        """Complete a source."""
        self.each[source].finish()
        self._complete[source] = True
        self._pass_on()

    def fail(self, error: BaseException) -> None:
        """End all streams that are not complete with an error."""
        for stream in (*self.each, self.all):
            if not stream.complete:
                stream.finish(error)

    def _pass_on(self) -> None:
        while self._next < len(self.each):
            self.all.extend(self._waiting[self._next])
            self._waiting[self._next] = []
            if not self._complete[self._next]:
                return
            self._next += 1
        if not self.all.complete:
            self.all.finish()


class LiveSource:
    """One source of a set: its finished units, up to the first unfinished one or up to its limit.

    Attributes:
        names: of its ledgers, by split.
        complete: whether the whole source is in the streams.
    """

    def __init__(
        self,
        number: int,
        units: tuple[Unit, ...],
        encoding: Encoding,
        limit: int | None,
        streams: Mapping[Split, Streams],
        names: Mapping[Split, str] | None = None,
    ) -> None:
        """`names` are those of its ledgers if its files need not exist any more."""
        self.number, self.units, self.encoding, self.limit = number, units, encoding, limit
        self.names = names or {split: ledger.name_of(units, split, encoding, limit) for split in encoding.splits}
        self.complete = False
        self._streams = streams
        self._ready: dict[int, Parts] = {}
        self._next = 0
        self._kept: dict[Split, list[tuple[Shard, int]]] = {split: [] for split in encoding.splits}
        self._documents = 0
        self._newest: tuple[int, int] | None = None

    @property
    def shards(self) -> list[Shard]:
        """Return the shards of all splits so far."""
        return [shard for kept in self._kept.values() for shard, _ in kept]

    def find(self, cache: Path) -> dict[Split, Ledger] | None:
        """Return its ledgers by split; None unless they exist with all their shards."""
        ledgers = {split: found for split, name in self.names.items() if (found := ledger.find(cache, name))}
        return ledgers if len(ledgers) == len(self.names) else None

    def take(self, ledgers: Mapping[Split, Ledger]) -> None:
        """Complete the source with its ledgers."""
        first = ledgers[self.encoding.splits[0]]
        # each part has a shard of every split
        parts = zip(*(each.shards for each in ledgers.values()), strict=True)
        for part, unit in zip(parts, first.units, strict=True):
            self._add(dict(zip(ledgers, part, strict=True)), unit)
        for split in ledgers:
            self._streams[split].finish(self.number)
        self.complete = True

    def add(self, cache: Path, unit: int, parts: Parts) -> None:
        """Add a finished unit; the last unit writes the ledgers. Raises TrainkitError if they cannot be written."""
        self._ready[unit] = parts
        while not self.complete and self._next in self._ready:
            for part in self._ready.pop(self._next):
                if not self._is_full:
                    self._add(part, self._next)
            self._next += 1
            if self._next == len(self.units) or self._is_full:
                self._finish(cache)

    @property
    def _is_full(self) -> bool:
        return self.limit is not None and self._documents >= self.limit

    def _add(self, part: Mapping[Split, Shard], unit: int) -> None:
        sections = {split: self._all_of(shard, unit) for split, shard in part.items()}
        if self.limit is not None:
            sections |= self._take_limited(part, unit)
        for split, section in sections.items():
            self._kept[split].append((part[split], unit))
            self._streams[split].extend(self.number, [section])

    def _all_of(self, shard: Shard, unit: int) -> Section:
        return Section(shard, self.number, unit, shard.tokens, shard.documents, shard.entries, shard.bytes)

    def _take_limited(self, part: Mapping[Split, Shard], unit: int) -> dict[Split, Section]:
        """Return the sections that fit if the limit is reached. It counts documents, in whichever split they are."""
        assert self.limit is not None
        places = {split: self._places(split, shard) for split, shard in part.items()}
        every = np.unique(np.concatenate(list(places.values())))
        # parts of a held-out document may be in the previous part of the unit
        continued = int(len(every) > 0 and self._newest == (unit, int(every[0])))
        room = self.limit - self._documents + continued
        self._documents += min(room, len(every)) - continued
        if len(every):
            self._newest = unit, int(every[-1])
        return dict(self._cut(part, unit, places, every[room - 1])) if len(every) >= room else {}

    def _cut(
        self, part: Mapping[Split, Shard], unit: int, places: Mapping[Split, np.ndarray], last: np.uint64
    ) -> Iterator[tuple[Split, Section]]:
        for split, shard in part.items():
            entries = int(np.searchsorted(places[split], last, side="right"))
            documents = len(np.unique(places[split][:entries]))
            arrays = self._arrays(split, shard)
            tokens = int(arrays.ends[entries - 1]) if entries else 0
            if arrays.sizes is None:
                size = round(shard.bytes * tokens / max(1, shard.tokens))
            else:
                size = int(arrays.sizes[:entries].sum(dtype=np.int64))
            yield split, Section(shard, self.number, unit, tokens, documents, entries, size)

    def _places(self, split: Split, shard: Shard) -> np.ndarray:
        """Return the place of each document in the unit, as rising numbers, (entries,)."""
        records = self._arrays(split, shard).documents
        return (records["file"].astype(np.uint64) << np.uint64(32)) | records["index"]

    def _arrays(self, split: Split, shard: Shard) -> Arrays:
        return self._streams[split].each[self.number].open(shard)

    def _finish(self, cache: Path) -> None:
        for split, kept in self._kept.items():
            its_shards, its_units = tuple(shard for shard, _ in kept), tuple(unit for _, unit in kept)
            finished = Ledger(split, self.encoding.tokenizer, self.encoding.dtype, its_shards, its_units)
            ledger.save(cache, self.names[split], finished, self.units, self.limit)
            self._streams[split].finish(self.number)
        self.complete = True
        self._ready.clear()
