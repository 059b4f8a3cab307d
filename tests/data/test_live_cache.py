"""Training may begin while its data is still being tokenised, and sees what it would have seen had all been there."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import LIMIT

from trainkit.data import jobs
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet, validation_sources
from trainkit.data.batches.layout import Batch
from trainkit.data.cache import build as caches
from trainkit.data.cache.encode import threads
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Stopped
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

few = settings(max_examples=20, deadline=None)
#: A batch or the whole tells it, whichever is asked for first.
NOTHING = "no text, or no example"


always_small_units, tokenised = room.always_small_units, room.tokenised


def digest(batch: Batch) -> str:
    return hashlib.sha256(b"".join(name.encode() + batch[name].tobytes() for name in sorted(batch))).hexdigest()


def write_sources(directory: Path, counts: list[int]) -> list[Path]:
    """A directory of text files for each count."""
    return [
        room.write_texts(directory / f"source{i}", count, first=100 * i) / "**/*.txt" for i, count in enumerate(counts)
    ]


encodings = st.sampled_from(
    [
        {"type": "concatenate"},
        {"type": "concatenate", "separate": True},
        {"type": "windows", "stride": 9, "min_length": 3},
        {"type": "pack"},
        {"type": "pack", "too_long": "split"},
        {"type": "pad", "too_long": "drop", "min_length": 30},
    ]
)


@few
@given(
    spec=encodings,
    shuffle=st.just(False) | st.integers(1, 40).map(lambda n: {"window": n}),
    weights=st.sampled_from([None, (1.0, 1.0), (5.0, 1.0), (((0, 1.0), (3, 0.0), (7, 2.0)), ((0, 0.5), (3, 1.0)))]),
    counts=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    limit=st.none() | st.integers(2, 12),
    held_out=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_batches_of_a_growing_cache_are_those_of_the_finished_one(
    tmp_path_factory, spec, shuffle, weights, counts, limit, held_out, seed
):
    directory = tmp_path_factory.mktemp("growing")
    sources: list[dict[str, Any]] = [
        {"path": str(path), "limit": limit} for path in write_sources(directory, list(counts))
    ]
    if weights:
        sources = [source | {"weight": weight} for source, weight in zip(sources, weights, strict=True)]
    options = {"encoding": spec, "shuffle": shuffle, "held_out": held_out, "sequence_length": 64, "seed": seed}
    growing, finished = room.recipes_of(directory, *sources, **options)
    assert caches.may_start_early(growing)
    drawn = random.Random(seed)
    steps = [*range(12), 40, 3]
    with pytest.MonkeyPatch.context() as patch:
        room.small_units(patch)
        expected = outcomes(caches.build, finished, steps)
        room.before_each_unit(patch, lambda unit: time.sleep(drawn.random() / 500))
        assert outcomes(caches.begin, growing, steps) == expected
    if limit is None and len(expected) > 1:  # else one may have been a unit further ahead than the other
        assert room.stored(directory / "one") == room.stored(directory / "other")


def outcomes(make: Callable[[Recipe], Cache], recipe: Recipe, steps: list[int]) -> list[str]:
    """The batch of each step, and those of the evaluation sets."""
    found: list[str] = []
    try:
        cache = make(recipe)
    except TrainkitError:
        return [NOTHING]
    try:
        data = TrainSet(cache, recipe)
        found += [digest(data.batch(step)) for step in steps]
        cache.wait()
    except TrainkitError:
        cache.close()
        return [NOTHING]
    for (name, stream), source in zip(cache.validation.items(), validation_sources(recipe), strict=True):
        evaluation = EvalSet(stream, source, recipe.data, cache.directory, batch_size=3, name=name)
        try:
            found += [digest(evaluation.batch(i)) for i in range(len(evaluation))]
        except TrainkitError as error:
            found.append(error.problem)
    found.append(cache.fingerprint)
    return found


@pytest.mark.parametrize("encoding", ["concatenate", "windows", "pack"])
@pytest.mark.parametrize("shuffle", [False, {"window": 4}])
def test_an_early_batch_is_there_while_later_units_are_still_not_tokenised(tmp_path, monkeypatch, encoding, shuffle):
    (path,) = write_sources(tmp_path, [40])
    growing, finished = room.recipes_of(
        tmp_path, path, shuffle=shuffle, encoding={"type": encoding}, sequence_length=64
    )
    expected = TrainSet(caches.build(finished), finished)
    opened = threading.Event()
    first = expected.batch(0), next(iter(caches.build(finished).units["train"][0]))
    room.before_each_unit(monkeypatch, lambda unit: unit == first[1] or opened.wait(LIMIT))
    cache = caches.begin(growing)
    data = TrainSet(cache, growing)
    assert digest(data.batch(0)) == digest(first[0])
    assert not cache.train.complete
    assert data.epochs(1) == {}
    opened.set()
    assert [digest(data.batch(step)) for step in range(30)] == [digest(expected.batch(step)) for step in range(30)]
    cache.wait()
    assert cache.train.complete
    assert data.epochs(1) == {"train": growing.train.batch_size / data.examples}


def test_weighted_sources_are_tokenised_side_by_side_as_their_weights_say(tmp_path, monkeypatch):
    order: list[str] = []
    room.before_each_unit(
        monkeypatch, lambda unit: order.append(Path(unit.files[0].path).relative_to(tmp_path).parts[0])
    )
    sources = write_sources(tmp_path, [60, 60])
    for weights in ((3.0, 1.0), (1.0, 3.0)):
        order.clear()
        directory = tmp_path / f"weights{weights[0]}"
        recipe = room.recipe(directory, *({"path": str(p), "weight": w} for p, w in zip(sources, weights, strict=True)))
        caches.build(recipe, engine=threads(1))
        favoured = f"source{int(weights[1] > weights[0])}"
        half = order[: len(order) // 2]
        assert half.count(favoured) >= 2 * (len(half) - half.count(favoured)) > 0


def test_an_error_is_raised_by_the_batch_that_needs_what_is_wrong_and_not_before(tmp_path, monkeypatch):
    for number in range(30):
        room.write_jsonl(tmp_path / f"{number:02d}.jsonl", [room.text(number)])
    with (tmp_path / "25.jsonl").open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    recipe = room.recipe(tmp_path, tmp_path / "*.jsonl", shuffle=False)
    asked = threading.Event()
    room.before_each_unit(monkeypatch, lambda unit: "25.jsonl" not in {f.name for f in unit.files} or asked.wait(LIMIT))
    data = TrainSet(caches.begin(recipe), recipe)
    for step in range(5):
        data.batch(step)
    asked.set()
    with pytest.raises(TrainkitError, match="is not JSON") as caught:
        data.batch(1000)
    assert caught.value.where == f"{tmp_path / '25.jsonl'}:2"
    data.batch(5)
    with pytest.raises(TrainkitError, match="is not JSON"):
        data.examples  # noqa: B018
    with pytest.raises(TrainkitError, match="is not JSON"):
        caches.build(recipe)


def test_what_is_wrong_with_the_whole_is_raised_where_all_of_it_is_waited_for(tmp_path):
    (tmp_path / "a.txt").write_text("one document", encoding="utf-8")
    cache = caches.begin(room.recipe(tmp_path, tmp_path / "a.txt", held_out=0.001, shuffle=False))
    with pytest.raises(TrainkitError, match="holds out none"):
        cache.wait()


def test_closing_a_growing_cache_ends_its_work_and_the_wait_for_it(tmp_path, monkeypatch):
    (path,) = write_sources(tmp_path, [60])
    opened = threading.Event()
    room.before_each_unit(monkeypatch, lambda unit: opened.wait(LIMIT))
    recipe = room.recipe(tmp_path, path, shuffle=False)
    cache = caches.begin(recipe)
    closing = threading.Thread(target=cache.close)
    closing.start()
    opened.set()
    with pytest.raises(Stopped):
        TrainSet(cache, recipe).batch(1000)
    closing.join()
    assert caches.find(recipe) is None


@few
@given(
    limit=st.integers(1, 45),
    held_out=st.sampled_from([0.0, 0.3]),
    workers=st.integers(1, 3),
    per_file=st.integers(1, 7),
)
def test_a_limit_takes_the_first_documents_in_whichever_split_they_are(
    tmp_path_factory, limit, held_out, workers, per_file
):
    directory = tmp_path_factory.mktemp("limit")
    texts = [f"<{i}> {room.text(i, 30)}" for i in range(42)]
    for number in range(0, len(texts), per_file):
        room.write_jsonl(directory / f"{number:02d}.jsonl", texts[number : number + per_file])
    source = {"path": str(directory / "*.jsonl"), "limit": limit}
    recipe = room.recipe(directory, source, {"path": str(directory / "*.jsonl")}, held_out=held_out)
    with pytest.MonkeyPatch.context() as patch:
        room.small_units(patch)
        built = caches.build(recipe, engine=threads(workers))
        for cache in (built, caches.find(recipe), caches.begin(recipe)):
            streams = cache.trained.streams.values()
            limited = [stream.each[0] for stream in streams]
            found = [text for stream in limited for text in room.text_of(cache, stream).split(room.END)[:-1]]
            assert sorted(found) == sorted(texts[:limit])
            assert sum(stream.documents for stream in limited) == min(limit, len(texts))
            assert sum(stream.documents for stream in (cache.train, *cache.validation.values())) == 42 + len(found)


def test_units_beyond_the_limit_are_not_tokenised(tmp_path, tokenised):
    for number in range(60):
        room.write_jsonl(tmp_path / f"{number:02d}.jsonl", [room.text(number + i, 30) for i in range(4)])
    recipe = room.recipe(tmp_path, {"path": str(tmp_path / "*.jsonl"), "limit": 20}, held_out=0.1)
    cache = caches.build(recipe, engine=threads(1))
    needed = sum(len(unit.files) for unit in cache.units["train"][0][: len(tokenised) - 1])
    assert sum(len(unit.files) for unit in tokenised) < 30, "5 files, those of the same units, and one unit ahead"
    assert needed
    tokenised.clear()
    assert caches.build(recipe).fingerprint == cache.fingerprint
    assert caches.find(recipe).train.documents == cache.train.documents
    assert not tokenised


def test_a_limit_within_a_long_text_counts_the_text_as_one_document(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{i} words\n" for i in range(20_000)), encoding="utf-8")
    whole, limited = room.recipes_of(tmp_path, {"path": str(tmp_path / "a.txt")}, held_out=0.1)
    limited = room.recipe(tmp_path / "other", {"path": str(tmp_path / "*.txt"), "limit": 1}, held_out=0.1)
    one, other = caches.build(whole), caches.build(limited)
    for name in ("train", "held-out"):
        mine, theirs = ((c.train if name == "train" else c.validation[name]) for c in (one, other))
        np.testing.assert_array_equal(room.tokens_of(mine), room.tokens_of(theirs))


def test_other_weights_tokenise_nothing_and_touch_no_shard(tmp_path, tokenised):
    sources = write_sources(tmp_path, [12, 12])
    stats, batches = [], []
    for weights in ((1.0, 1.0), (3.0, 1.0), ([[0, 1.0], [2, 0.0]], 1.0)):
        tokenised.clear()
        # as a recipe file has them: lists
        named = [{"path": str(p), "weight": _tuples(w)} for p, w in zip(sources, weights, strict=True)]
        recipe = room.recipe(tmp_path, *named)
        cache = caches.build(recipe)
        batches.append([digest(TrainSet(cache, recipe).batch(step)) for step in range(6)])
        stats.append({p.name: p.stat().st_mtime_ns for p in (tmp_path / "cache/shards").iterdir()})
    assert not tokenised
    assert stats[0] == stats[1] == stats[2]
    assert batches[0] != batches[1]
    assert batches[2][:2] == batches[0][:2], "the first stage has the same weights"
    assert batches[2] != batches[0]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def test_a_stage_of_weights_shows_only_the_sources_that_it_weighs_and_continues_where_each_was(tmp_path):
    paths = [room.write_jsonl(tmp_path / f"{n}.jsonl", [f"{n}{i}" for i in range(4000)]) for n in "ab"]
    stages: list[Any] = [((0, 1.0), (4, 0.0), (8, 1.0)), 1.0]
    named = [{"path": str(p), "weight": w, "name": p.stem} for p, w in zip(paths, stages, strict=True)]
    recipe = room.recipe(tmp_path, *named, batch_size=64, shuffle=False)
    data = TrainSet(caches.build(recipe), recipe)
    rows = [(step, row.source, row.example) for step in range(12) for row in data.rows(step)]
    assert {source for step, source, _ in rows if 4 <= step < 8} == {"b"}
    assert {source for step, source, _ in rows if step >= 8} == {"a", "b"}
    for name in "ab":
        seen = [example for _, source, example in rows if source == name]
        assert seen == list(range(len(seen))), "without a gap over the stages"


def test_the_first_mistake_is_the_one_that_is_reported_however_the_work_is_divided_and_all_before_it_is_there():
    def job(number: int, stop: jobs.Stop) -> int:
        if number in (3, 5):
            raise ValueError(number)
        if number < 3:
            time.sleep(0.05 * (3 - number))
        return number

    for workers in (1, 2, 4, 8):
        seen: list[int] = []
        with pytest.raises(ValueError, match="3"):
            jobs.run(
                [partial(job, number) for number in range(9)],
                workers=workers,
                tick=lambda: None,
                on_result=lambda index, result: seen.append(index),  # noqa: B023
            )
        assert {0, 1, 2} <= set(seen)


def test_what_was_skipped_before_and_may_not_be_now_is_reported_where_the_data_is_waited_for(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", ["some text", "more text"])
    with path.open("a") as file:
        file.write("no json\n")
    caches.build(room.recipe(tmp_path, path, on_error="skip"))
    cache = caches.begin(room.recipe(tmp_path, path))
    with pytest.raises(TrainkitError, match="is not JSON"):
        cache.wait()
