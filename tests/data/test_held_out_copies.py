"""What is held out has no exact copy of a training document."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import data_room as room
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.data import checks
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.cache import build as caches
from trainkit.data.cache import encode, verify
from trainkit.data.cache.token_cache import Cache
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe

few = settings(max_examples=15, deadline=None)
always_small_units = room.always_small_units


def documents(cache: Cache, name: str) -> list[str]:
    stream = cache.train if name == "train" else cache.validation[name]
    return room.text_of(cache, stream).split(room.END)[:-1]


@few
@given(
    texts=st.lists(st.integers(0, 60), min_size=40, max_size=150),
    limit=st.none() | st.integers(30, 150),
    shard=st.sampled_from([300, 1 << 22]),
    seen=st.booleans(),
)
def test_no_document_is_both_trained_on_and_held_out_and_all_others_are_there(
    tmp_path_factory, texts, limit, shard, seen
):
    directory = tmp_path_factory.mktemp("apart")
    every = [room.text(i, 10) for i in range(61)]
    path = room.write_jsonl(directory / "a.jsonl", [*every, *(every[i] for i in texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "SHARD_TOKENS", shard)
        patch.setattr(encode, "_BATCH_BYTES", 100)
        room.small_units(patch)
        source = {"path": str(path)} | ({} if limit is None else {"limit": limit})
        recipe = room.recipe(directory, source, held_out=0.3, shuffle=False)
        try:
            cache = caches.build(recipe)
        except TrainkitError as error:
            assert "exact copies" in error.problem
            return
        if seen:
            found = caches.find(recipe)
            assert found is not None
            cache = found
    whole = cache.trained.streams["held-out"].all
    before = room.text_of(cache, whole).split(room.END)[:-1]
    trained = set(documents(cache, "train"))
    kept = [text for text in before if text not in trained]
    assert documents(cache, "held-out") == kept
    assert cache.copies == len(before) - len(kept)
    stream = cache.validation["held-out"]
    assert (stream.documents, stream.complete) == (len(kept), True)
    assert stream.bytes == sum(len(text.encode()) for text in kept)
    places = [place.index for place in stream.places(0, stream.tokens)]
    all_of_it = [*every, *(every[i] for i in texts)]
    assert [all_of_it[index] for index in places] == kept


def doubled(tmp_path, **options) -> Recipe:
    texts = [f"{i} {room.text(i)}" for i in range(120)]
    path = room.write_jsonl(tmp_path / "a.jsonl", [*texts, *texts[:10]])
    return room.recipe(tmp_path, path, held_out=0.2, **options)


def test_copies_are_counted_once_as_a_fact_and_not_as_a_warning(tmp_path):
    cache = caches.build(recipe := doubled(tmp_path))
    assert cache.copies
    about = [finding for finding in checks.find_problems(cache, recipe) if "held-out" in finding.message]
    (finding,) = about
    assert finding.level == "info"
    assert finding.message.startswith(f"held-out: {cache.copies} document")
    assert finding.message.endswith("left out of the evaluation")


def forget_sizes(directory: Path) -> None:
    """Make the shards what they were before they had the bytes of each document."""
    for record in directory.glob("*.json"):
        shard = json.loads(record.read_bytes())
        content = record.with_suffix(".shard").read_bytes()
        content = content[: len(content) - 4 * shard["entries"]]
        record.with_suffix(".shard").write_bytes(content)
        assert shard.pop("measured") and shard.pop("checksum")
        record.write_text(json.dumps(shard | {"crc32": zlib.crc32(content)}))


def test_a_cache_of_an_earlier_version_is_used_and_its_bytes_are_said_to_be_an_estimate(tmp_path):
    def said(cache: Cache) -> str:
        (message,) = [f.message for f in checks.find_problems(cache, recipe) if "held-out" in f.message]
        return message

    cache = caches.build(recipe := doubled(tmp_path))
    tokens, exact = cache.validation["held-out"].tokens, cache.validation["held-out"].bytes
    assert "estimate" not in said(cache)
    forget_sizes(tmp_path / "cache/shards")
    shutil.rmtree(tmp_path / "cache/ledgers")
    before = room.stored(tmp_path)
    earlier = caches.build(recipe)
    assert room.stored(tmp_path).items() >= before.items(), "nothing is tokenised again"
    assert earlier.validation["held-out"].tokens == tokens
    assert earlier.validation["held-out"].bytes == pytest.approx(exact, rel=0.1)
    assert "an estimate of the bytes" in said(earlier) and "cache-data RECIPE --rebuild" in said(earlier)


def test_what_is_trained_on_is_the_same_as_before(tmp_path):
    texts = [f"{i} {room.text(i)}" for i in range(120)]
    recipe = doubled(tmp_path)
    cache = caches.build(recipe)
    trained = documents(cache, "train")
    assert len(trained) == 130 - len(documents(cache, "held-out")) - cache.copies
    assert set(trained) | set(documents(cache, "held-out")) == set(texts)


def test_what_begins_early_is_evaluated_on_the_same(tmp_path):
    early, late = doubled(tmp_path / "early", shuffle={"window": 4}), doubled(tmp_path / "late")
    begun = caches.begin(early)
    begun.wait()
    assert documents(begun, "held-out") == documents(caches.build(late), "held-out")
    TrainSet(begun, early).batch(0)
    begun.close()


def test_a_shard_without_copies_is_verified_and_made_again_as_any_other(tmp_path):
    recipe = doubled(tmp_path)
    cache = caches.build(recipe)
    before, text = room.stored(tmp_path), documents(cache, "held-out")
    (name,) = {s.shard.key for s in cache.validation["held-out"].sections} - {s.key for s in cache.shards}
    damaged = tmp_path / "cache/shards" / f"{name}.shard"
    damaged.write_bytes(bytes(len(before[damaged.name])))
    found = verify.verify(tmp_path / "cache")
    assert [path for path, _ in found.damaged] == [damaged]
    verify.remove(tmp_path / "cache", found)
    assert caches.find(recipe) is None
    assert documents(caches.build(recipe), "held-out") == text
    assert room.stored(tmp_path) == before


def test_where_nothing_is_left_it_is_an_error_that_says_why(tmp_path):
    path = room.write_jsonl(tmp_path / "a.jsonl", ["the same"] * 60)
    with pytest.raises(TrainkitError, match="that are held out are exact copies of training documents") as caught:
        caches.build(room.recipe(tmp_path, path, held_out=0.2))
    assert caught.value.where == "data.held_out"


@pytest.mark.parametrize("encoding", [{}, {"type": "pack"}, {"type": "pad", "buckets": (8, 16)}])
def test_evaluations_read_what_is_left(tmp_path, encoding):
    recipe = doubled(tmp_path, encoding=encoding)
    cache = caches.build(recipe)
    stream, source = cache.validation["held-out"], recipe.data.train[0]
    data = EvalSet(stream, source, recipe.data, cache.directory, batch_size=4)
    weights = np.concatenate([data.batch(i)["weights"].sum(1) for i in range(len(data))])
    assert 0 < weights.sum() < stream.tokens
