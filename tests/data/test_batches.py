"""Batches are pure functions of seed, tokens and step, and have every token once an epoch."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import data_room as room
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.sources import units
from trainkit.errors import TrainkitError
from trainkit.plan import Devices, make_plan
from trainkit.recipe import Recipe
from trainkit.tasks.causal_lm import CausalLMTask


def _documents(sizes: list[int]) -> list[str]:
    return [room.text(i, words=max(1, size)) for i, size in enumerate(sizes)]


def _stored(directory: Path) -> np.ndarray:
    """All training tokens of a cache with one ledger, read file by file as the ledger says."""
    (path,) = (directory / "cache" / "ledgers").iterdir()
    ledger = json.loads(path.read_bytes())
    parts = []
    for shard in ledger["shards"]:
        content = (directory / "cache" / "shards" / f"{shard['key']}.shard").read_bytes()
        parts.append(np.frombuffer(content, ledger["dtype"], count=shard["tokens"]))
    return np.concatenate(parts)


def _evaluation(cache: Cache, recipe: Recipe, **options: int) -> EvalSet:
    return EvalSet(cache.train, recipe.data.train[0], recipe.data, cache.directory, **options)


few = settings(max_examples=25, deadline=None)
sizes = st.lists(st.integers(1, 60), min_size=3, max_size=25)


@few
@given(sizes=sizes, length=st.integers(1, 200), batch=st.integers(1, 9))
def test_every_token_is_a_target_once_an_epoch_but_the_very_first(tmp_path_factory, sizes, length, batch):
    directory = tmp_path_factory.mktemp("batches")
    for i, text in enumerate(_documents(sizes)):  # files, so that there are several shards
        (directory / f"{i:03d}.txt").write_text(text, encoding="utf-8")
    recipe = room.recipe(directory, directory / "*.txt", sequence_length=length, batch_size=batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "LARGE", 1)  # every file becomes a shard, and examples lie across several
        cache = caches.build(recipe)
    assume(cache.train.tokens > length)
    data = TrainSet(cache, recipe)
    tokens = _stored(directory)
    assert len(list((directory / "cache/shards").glob("*.shard"))) == len(sizes)

    targets, inputs = [], []
    steps = -(-data.examples // batch)
    for step in range(steps):
        made = data.batch(step)
        assert made["tokens"].shape == made["targets"].shape == made["weights"].shape == (batch, length)
        rows = min(batch, data.examples - step * batch)  # what is beyond belongs to the next epoch
        counted = made["weights"][:rows] == 1
        targets += made["targets"][:rows][counted].tolist()
        inputs += made["tokens"][:rows][counted].tolist()
        assert not made["targets"][made["weights"] == 0].any()
    assert sorted(targets) == sorted(tokens[1:].tolist())
    assert sorted(inputs) == sorted(tokens[:-1].tolist())


@few
@given(sizes=sizes, length=st.integers(1, 40), batch=st.integers(1, 9))
def test_a_validation_set_is_every_example_in_order_once_in_batches_of_one_shape(
    tmp_path_factory, sizes, length, batch
):
    directory = tmp_path_factory.mktemp("evaluation")
    room.write_jsonl(directory / "a.jsonl", _documents(sizes))
    recipe = room.recipe(directory, directory / "a.jsonl", sequence_length=length)
    cache = caches.build(recipe)
    tokens = _stored(directory)
    data = _evaluation(cache, recipe, batch_size=batch)
    batches = [data.batch(i) for i in range(len(data))]
    assert {b["targets"].shape for b in batches} == {(batch, length)}
    assert np.concatenate([b["targets"][b["weights"] == 1] for b in batches]).tolist() == tokens[1:].tolist()
    assert np.concatenate([b["tokens"][b["weights"] == 1] for b in batches]).tolist() == tokens[:-1].tolist()
    assert (data.targets, data.bytes) == (cache.train.tokens - 1, sum(len(t.encode()) for t in _documents(sizes)))

    part = _evaluation(cache, recipe, batch_size=batch, max_batches=2)
    assert len(part) == min(2, len(data))
    assert (part.targets, part.bytes) == (data.targets, data.bytes)


@few
@given(sizes=sizes, length=st.integers(1, 20), at_once=st.integers(1, 4), parts=st.integers(2, 4))
def test_what_max_batches_evaluates_is_the_same_however_few_rows_go_at_once(
    tmp_path_factory, sizes, length, at_once, parts
):
    directory = tmp_path_factory.mktemp("parts")
    room.write_jsonl(directory / "a.jsonl", _documents(sizes))
    cache = caches.build(recipe := room.recipe(directory, directory / "a.jsonl", sequence_length=length))

    def targets(**options: int) -> list[int]:
        data = _evaluation(cache, recipe, batch_size=at_once * parts, max_batches=2, **options)
        batches = [data.batch(i) for i in range(len(data))]
        assert {len(b["targets"]) for b in batches} == {options.get("at_once", at_once * parts)}
        assert all(b["weights"].any() for b in batches), "none is of padding only"
        return np.concatenate([b["targets"][b["weights"] == 1] for b in batches]).tolist()

    assert targets(at_once=at_once) == targets()


def test_not_shuffled_the_first_batch_is_the_beginning_of_the_text(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", _documents([200]))
    recipe = room.recipe(tmp_path, tmp_path / "a.jsonl", sequence_length=8, batch_size=2, shuffle=False)
    cache = caches.build(recipe)
    batch = TrainSet(cache, recipe).batch(0)
    expected = cache.tokenizer.encode(_documents([200])[0])
    assert batch["tokens"].reshape(-1).tolist() == expected[:16]
    assert batch["targets"].reshape(-1).tolist() == expected[1:17]


SCRIPT = """
import hashlib, sys
from trainkit.recipe import Recipe
from trainkit.data.cache.build import find
from trainkit.data.batches.dataset import TrainSet
recipe = Recipe.model_validate_json(sys.stdin.read())
data = TrainSet(find(recipe), recipe)
for step in (1000, 3, 7):
    batch = data.batch(step)
    print(step, hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest())
"""


@pytest.mark.parametrize("weights", [(None, None), (3.0, 1.0)])
def test_batches_are_equal_in_another_process_and_asked_in_another_order(tmp_path, weights):
    sources = []
    for name, weight in zip("ab", weights, strict=True):
        path = room.write_jsonl(tmp_path / f"{name}.jsonl", _documents([50, 60, 70, len(name)]))
        sources.append({"path": str(path)} | ({"weight": weight} if weight else {}))
    recipe = room.recipe(tmp_path, *sources, seed=5)
    data = TrainSet(caches.build(recipe), recipe)
    for step in (7, 3, 2, 1000):
        batch = data.batch(step)
        digest = hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()
        if step == 2:
            continue
        there = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=recipe.model_dump_json(by_alias=True),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"{step} {digest}\n" in there


def test_another_seed_gives_another_order_of_the_same_examples(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", _documents([100] * 10))
    recipes = [room.recipe(tmp_path, tmp_path / "a.jsonl", seed=seed, batch_size=40) for seed in (0, 1)]
    one, other = (TrainSet(caches.build(r), r).batch(0)["tokens"] for r in recipes)
    assert not np.array_equal(one, other)


def test_a_mixture_takes_each_source_by_its_weight_and_each_goes_through_its_own_epochs(tmp_path):
    paths = {}
    for name, letter, count in (("a", "x", 30), ("b", "y", 400)):
        paths[name] = room.write_jsonl(tmp_path / f"{name}.jsonl", [f"{letter * 9}{i}" for i in range(count)])
    sources = [{"path": str(paths["a"]), "weight": 3.0}, {"path": str(paths["b"]), "weight": 1.0}]
    recipe = room.recipe(tmp_path, *sources, sequence_length=8, batch_size=256)
    cache = caches.build(recipe)
    data = TrainSet(cache, recipe)
    x, y = (cache.tokenizer.encode(letter)[0] for letter in "xy")
    rows = np.concatenate([data.batch(step)["tokens"] for step in range(4)])  # one block of the mixture
    has_x, has_y = (rows == x).any(axis=1), (rows == y).any(axis=1)
    assert not (has_x & has_y).any()
    assert (has_x.sum(), has_y.sum()) == (768, 256)

    examples = cache.sources[0].examples(8)
    assert data.examples == examples + cache.sources[1].examples(8)
    seen = [row.tobytes() for row in rows[has_x]]
    epochs = [seen[i * examples : (i + 1) * examples] for i in range(len(seen) // examples)]
    assert len(epochs) > 3
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_mixture_that_is_not_shuffled_takes_every_source_in_its_stored_order(tmp_path):
    sources = []
    for name in "ab":
        path = room.write_jsonl(tmp_path / f"{name}.jsonl", [f"{name}{i}" for i in range(2000)])
        sources.append({"path": str(path), "weight": 1.0})
    recipe = room.recipe(tmp_path, *sources, sequence_length=16, batch_size=512, shuffle=False)
    cache = caches.build(recipe)
    rows = TrainSet(cache, recipe).batch(0)["tokens"]
    for letter, stream in zip("ab", cache.sources, strict=True):
        mine = rows[(rows == cache.tokenizer.encode(letter)[0]).any(axis=1)]
        assert mine.reshape(-1).tolist() == room.tokens_of(stream)[: mine.size].tolist()


PADDED = [{"type": "pack"}, {"type": "pad"}, {"type": "windows"}, {"type": "pad", "buckets": (4, 8)}]


@pytest.mark.parametrize("encoding", [{"type": "concatenate"}, *PADDED], ids=str)
@pytest.mark.parametrize("rows", [None, np.array([1, 3])], ids=["all", "some"])
def test_the_tokens_of_a_batch_are_its_positions_without_padding(tmp_path, encoding, rows):
    path = room.write_jsonl(tmp_path / "a.jsonl", _documents(range(1, 60)))
    recipe = room.recipe(tmp_path, path, encoding=encoding, batch_size=5)
    data = TrainSet(caches.build(recipe), recipe)
    for step in range(40):
        batch = data.batch(step, rows)
        # of the very last token of a stream there is nothing to predict
        assert CausalLMTask().count(batch)["tokens"] - (batch["weights"] > 0).sum() in (0, 1)


@pytest.mark.parametrize("encoding", PADDED, ids=str)
@pytest.mark.parametrize("weights", [None, (((0, 1.0), (40, 0.1)), 1.0)], ids=["unweighted", "stages"])
def test_a_run_of_so_many_tokens_sees_about_so_many_without_padding(tmp_path, encoding, weights):
    if weights and "buckets" in encoding:
        pytest.skip("buckets go with no weights")
    sources = []
    for name, lengths in (("a", range(1, 60)), ("b", range(100, 160))):
        source = {"path": str(room.write_jsonl(tmp_path / f"{name}.jsonl", _documents(lengths)))}
        sources.append(source | ({"weight": weights[len(sources)]} if weights else {}))
    changes = {"encoding": encoding, "batch_size": 16, "sequence_length": 40}
    recipe = room.recipe(tmp_path, *sources, **changes)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": None, "tokens": 30_000})})
    data = TrainSet(caches.build(recipe), recipe)
    plan = make_plan(recipe, devices=Devices(count=1), vocab_size=300, data=data.size())
    seen = sum(CausalLMTask().count(data.batch(step))["tokens"] for step in range(plan.steps))
    assert seen == pytest.approx(30_000, rel=0.02)
    assert plan.total_tokens == pytest.approx(seen, rel=0.02)
    assert not caches.may_start_early(
        recipe.model_copy(update={"data": recipe.data.model_copy(update={"shuffle": False})})
    )


def test_a_source_with_a_small_weight_is_seen_as_often_as_it_says(tmp_path):
    path = str(room.write_jsonl(tmp_path / "a.jsonl", _documents([50])))
    recipe = room.recipe(tmp_path, {"path": path, "weight": 1.0}, {"path": path, "weight": 0.001}, batch_size=512)
    data = TrainSet(caches.build(recipe), recipe)
    seen = sum(row.source == "source-1" for step in range(10) for row in data.rows(step))
    assert seen == 5


def test_too_little_text_for_one_example_is_reported(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", ["a"])
    recipe = room.recipe(tmp_path, tmp_path / "a.jsonl", encoding={"eos": False})
    with pytest.raises(TrainkitError, match="1 tokens in 1 documents make no example") as caught:
        TrainSet(caches.build(recipe), recipe).batch(0)
    assert caught.value.where == "data.train"


def test_reading_batches_loads_neither_jax_nor_pyarrow_nor_datasets(tmp_path):
    room.write_jsonl(tmp_path / "a.jsonl", _documents([100]))
    recipe = room.recipe(tmp_path, tmp_path / "a.jsonl")
    caches.build(recipe)
    script = SCRIPT + "print(sorted({'jax', 'pyarrow', 'datasets', 'huggingface_hub'} & sys.modules.keys()))"
    out = subprocess.run(
        [sys.executable, "-c", script],
        input=recipe.model_dump_json(by_alias=True),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize("encoding", [{}, {"type": "pad", "buckets": (4, 8), "too_long": "truncate"}])
def test_max_batches_takes_a_sample_of_all_of_the_set_that_only_the_seed_decides(tmp_path, encoding):
    texts = [room.text(i, 1 + i % 9) for i in range(400)]
    path = room.write_jsonl(tmp_path / "a.jsonl", texts)
    cache = caches.build(recipe := room.recipe(tmp_path, path, encoding=encoding, sequence_length=12))
    whole = _evaluation(cache, recipe, batch_size=4)

    def rows(data: EvalSet) -> list[tuple[int, ...]]:
        found = [data.batch(i) for i in range(len(data))]
        return [tuple(row) for batch in found for row in np.pad(batch["targets"], ((0, 0), (0, 12)))[:, :12].tolist()]

    order = {row: place for place, row in reversed(list(enumerate(rows(whole))))}
    taken = {seed: rows(_evaluation(cache, recipe, batch_size=4, max_batches=8, seed=seed)) for seed in (0, 1, 2)}
    assert len({tuple(found) for found in taken.values()}) == 3
    assert taken[0] == rows(_evaluation(cache, recipe, batch_size=4, max_batches=8, seed=0))
    for found in taken.values():
        assert len(found) <= 32
        places = [order[row] for row in found if any(row)]
        assert len(set(places)) > 0.8 * len(places)
        assert min(places) < len(order) / 4
        assert max(places) > len(order) * 3 / 4
    for number in (len(whole), len(whole) + 1):
        assert rows(_evaluation(cache, recipe, batch_size=4, max_batches=number)) == rows(whole)


def test_a_sample_estimates_the_whole_where_a_set_is_sorted(tmp_path):
    # sorted by what they hold, as sets often are: the first batches say nothing of the rest
    texts = ["short"] * 300 + [room.text(i, 60) for i in range(100)]
    path = room.write_jsonl(tmp_path / "a.jsonl", texts)
    encoding = {"type": "pad", "too_long": "truncate"}
    cache = caches.build(recipe := room.recipe(tmp_path, path, encoding=encoding, sequence_length=64))

    def mean(data: EvalSet) -> float:
        weights = np.concatenate([data.batch(i)["weights"].sum(1) for i in range(len(data))])
        return float(weights[weights > 0].mean())

    means = [mean(_evaluation(cache, recipe, batch_size=8, max_batches=5, seed=seed)) for seed in range(20)]
    assert np.mean(means) == pytest.approx(mean(_evaluation(cache, recipe, batch_size=8)), rel=0.2)


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize(("bos", "eos"), [(False, False), (False, True), (True, False), (True, True)])
def test_bits_per_byte_count_each_target_of_a_set_once(tmp_path, separate, bos, eos):
    documents = _documents([1, 1, 3, 1, 7, 2])
    room.write_jsonl(tmp_path / "some.jsonl", documents)
    encoding = {"separate": separate, "bos": bos, "eos": eos}
    recipe = room.recipe(tmp_path, tmp_path / "some.jsonl", sequence_length=5, encoding=encoding)
    cache = caches.build(recipe)
    data = _evaluation(cache, recipe, batch_size=2)
    counted = sum(float(data.batch(i)["weights"].sum()) for i in range(len(data)))
    each = len(documents) if separate and (bos or not eos) else 1
    assert data.targets == counted == cache.train.tokens - each
    nats = 2.5 * counted
    told = CausalLMTask().report(loss=2.5, targets=data.targets, bytes=data.bytes)
    assert told["bits_per_byte"] == pytest.approx(nats / math.log(2) / sum(len(text.encode()) for text in documents))


@pytest.mark.parametrize("kind", ["concatenate", "pad", "windows"])
def test_a_row_says_how_much_of_it_is_no_padding(tmp_path, kind):
    room.write_jsonl(tmp_path / "some.jsonl", _documents([1, 9, 3, 40, 2]))
    recipe = room.recipe(tmp_path, tmp_path / "some.jsonl", sequence_length=16, encoding={"type": kind})
    cache = caches.build(recipe)
    data = _evaluation(cache, recipe, batch_size=4)
    for batch in (data.batch(i) for i in range(len(data))):
        learned = batch["weights"].astype(bool)
        last = np.where(learned.any(1), 16 - learned[:, ::-1].argmax(1), 0)
        assert batch["filled"].shape == (4,) and (batch["filled"] >= last).all()
        beyond = np.arange(16) >= batch["filled"][:, None]
        assert not learned[beyond].any() and not batch["tokens"][beyond].any()
