"""A stream is one row of tokens, however many shards it lies in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from places import LIMIT

from trainkit.data.batches import packing
from trainkit.data.batches.examples import examples_of
from trainkit.data.cache import build as caches
from trainkit.data.cache.arrays import open_arrays
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.sources import units


def test_examples_that_come_while_others_are_framed_are_not_waited_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "LARGE", 1)
    for number in range(2):
        room.write_jsonl(tmp_path / f"{number}.jsonl", [room.text(number)])
    recipe = room.recipe(tmp_path, tmp_path / "*.jsonl", encoding={"type": "pack"}, sequence_length=512)
    finished = caches.build(recipe).train
    growing = Stream(tmp_path / "cache", finished.dtype.str)
    growing.extend(finished.sections[:1])
    load = packing.load

    def meanwhile(*args: Any, **named: Any) -> packing.PackedSpans:
        if len(growing.sections) == 1:
            growing.extend(finished.sections[1:])
        return load(*args, **named)

    monkeypatch.setattr(packing, "load", meanwhile)
    examples = examples_of(growing, recipe.data.train[0], recipe.data, tmp_path / "cache")
    counts: list[int | None] = []
    waiting = threading.Thread(target=lambda: counts.append(examples.wait(2)), daemon=True)
    waiting.start()
    waiting.join(timeout=LIMIT)
    assert counts, "it waits, or has failed"


def _streams(directory: Path) -> Iterator[tuple[Cache, Stream]]:
    rows = [{"q": f"{i}", "a": room.text(i, i % 9)} for i in range(24)]
    for number in range(6):
        room.write_rows(directory / f"{number}.jsonl", rows[number::6])
    for document in (None, {"type": "prompt", "prompt": "{q}", "response": "{a}."}):
        table = {"path": str(directory / "*.jsonl"), "document": document, "limit": 22}
        cache = caches.build(room.recipe(directory, table if document else table | {"text_key": "a"}))
        yield cache, cache.train


def test_windows_marks_borders_and_places_are_those_of_the_whole_row(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "LARGE", 1)
    streams = list(_streams(tmp_path))
    for cache, stream in streams:
        check = _check_windows(cache, stream)
        check()


def _check_windows(cache: Cache, stream: Stream) -> Callable[[], None]:
    arrays = [open_arrays(cache.directory, section.shard) for section in stream.sections]
    cut = list(zip(stream.sections, arrays, strict=True))
    assert len(cut) == 6
    assert cut[-1][0].tokens < cut[-1][0].shard.tokens, "the limit cuts it"
    tokens = np.concatenate([a.tokens[: s.tokens] for s, a in cut])
    marks = np.concatenate([np.ones(s.tokens) if a.marks is None else a.marks[: s.tokens] for s, a in cut])
    sizes = [np.diff(a.ends[: s.documents].astype(int), prepend=0) for s, a in cut]
    ends = np.cumsum(np.concatenate(sizes))
    padded = np.concatenate([tokens, np.zeros(500, tokens.dtype)])
    assert len(tokens) == stream.tokens == ends[-1]

    @settings(max_examples=200, deadline=None)
    @given(
        starts=st.lists(st.integers(0, stream.tokens - 1), max_size=40) | st.lists(st.integers(0, 30), max_size=40),
        width=st.integers(1, 90),
    )
    def check(starts: list[int], width: int) -> None:
        where = np.array(starts, np.int64)
        expected = [padded[start : start + width].tolist() for start in starts]
        assert stream.windows(where, width).tolist() == expected
        for start, row in zip(starts, stream.marks(where, width).tolist(), strict=True):
            inside = marks[start : start + width].tolist()
            assert row[: len(inside)] == inside
        for start in starts[:2]:
            inside_ends = ends[(ends > start) & (ends <= start + width)] - start
            assert stream.borders(start, width).tolist() == inside_ends.tolist()
            places = list(stream.places(start, width))
            count = min(width, stream.tokens - start)
            assert sum(place.end - place.first for place in places) == count
            first = int(np.searchsorted(ends, start, side="right"))
            assert places[0].first == start - (ends[first - 1] if first else 0)

    return check
