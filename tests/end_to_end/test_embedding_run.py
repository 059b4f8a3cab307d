"""Learning vectors of texts by a recipe: queries find their positives, in transformers too."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_room import write_rows
from paired_rows import recipe_text
from reference import Reference
from test_classification_run import SIZES, SPECIAL, VOCAB, tokenizer
from trainer import WORDS, evaluations, inputs_copied, losses, run_of, trainkit

from trainkit import models
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.export.adapter import export_adapter
from trainkit.export.model import export
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.peft import WEIGHTS
from trainkit.hub.safetensors import Tensors, read_header
from trainkit.hub.save import save
from trainkit.plan.split import check_split
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.toml.load import load
from trainkit.tasks.embedding import pool


def recipe(**settings: Any) -> str:
    return recipe_text(
        task='type = "embedding"\ndimensions = [32, 8]',
        document='type = "positive-pair"',
        steps=30,
        rate=3e-3,
        length=16,
        held_out=0.2,
        train="batch_size = 16",
        **settings,
    )


DECODER = recipe(encoding='type = "pad", eos = false')


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A positive has the words of its query in another order."""
    directory, chance = tmp_path_factory.mktemp("embedding"), random.Random(0)
    queries = [chance.sample(WORDS, 3) for _ in range(160)]
    rows = [(words, chance.sample(words, 3) + chance.choices(WORDS, k=1)) for words in queries]
    write_rows(directory / "rows.jsonl", [{"query": " ".join(one), "positive": " ".join(two)} for one, two in rows])
    (directory / "base").mkdir()
    spec = Bert(**SIZES)
    model = models.build(spec, vocab_size=VOCAB, sequence_length=32, implementation="xla", key=jax.random.key(1))
    save(directory / "base", model, spec, dtype="float32", sequence_length=32)
    tokenizer(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1").save(str(directory / "base/tokenizer.json"))
    (directory / "tiny.toml").write_text(recipe(model='pretrained = "base"'))
    return directory


def vectors(out: Path, ids: list[list[int]], filled: list[int]) -> np.ndarray:
    """What our model of an export makes of texts."""
    spec = read_spec(out)
    shapes = eqx.filter_eval_shape(
        lambda key: models.build(spec, vocab_size=VOCAB, sequence_length=32, implementation="xla", key=key),
        jax.random.key(0),
    )
    segments = jnp.asarray(np.arange(len(ids[0])) < np.array(filled)[:, None], jnp.int32)
    hidden, _ = load_params(out, shapes).hidden_and_penalty(jnp.asarray(ids), segments_BT=segments)
    return np.asarray(pool(hidden, segments, "mean"))


def test_queries_find_held_out_positives_and_transformers_gives_the_same_vectors(
    place: Path, reference: Reference
) -> None:
    run = run_of(place)
    assert losses(run)[30] < losses(run)[1] / 2
    found = evaluations(run)[30]
    assert found["validation/held-out/mrr"] > 0.6
    assert found["validation/held-out/recall_at_1"] <= found["validation/held-out/recall_at_10"]
    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()[:32]]
    queries, positives = (reference.embed(place / "out", [row[key] for row in rows]) for key in ("query", "positive"))
    one, other = np.array(queries["vectors"]), np.array(positives["vectors"])
    cosines = one @ other.T / np.outer(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1))
    assert (cosines.argmax(1) == np.arange(32)).mean() > 0.7
    np.testing.assert_allclose(vectors(place / "out", queries["ids"], queries["filled"]), one, rtol=1e-4, atol=1e-5)


def test_an_adapter_of_an_encoder_alone_gives_peft_the_vectors_of_the_merged_model(
    place: Path, tmp_path: Path, reference: Reference
) -> None:
    inputs_copied(place, tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "base" / "tokenizer.json").rename(tmp_path / "words" / "tokenizer.json")
    text = recipe(model='pretrained = "base"\n[tokenizer]\npath = "words"', more='[adapter]\ntype = "lora"\nrank = 4')
    for old, new in (("steps = 30", "steps = 2"), ("every = 15", "every = 2"), ("rate = 0.003", "rate = 0.1")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "tiny.toml").write_text(text)
    run = run_of(tmp_path)
    export_adapter(run, None, tmp_path / "adapter")
    export(run, None, tmp_path / "merged", dtype="float32")
    rows = [json.loads(line)["query"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()[:8]]
    alone = reference.embed(tmp_path / "adapter", rows, base=str(tmp_path / "base"))
    merged = reference.embed(tmp_path / "merged", rows)
    assert alone["ids"] == merged["ids"]
    assert [ids[at - 1] for ids, at in zip(alone["ids"], alone["filled"], strict=True)] == [
        SPECIAL.index("[SEP]")
    ] * len(rows)
    np.testing.assert_allclose(alone["vectors"], merged["vectors"], rtol=1e-4, atol=1e-5)
    learned = Tensors(read_header(tmp_path / "adapter" / WEIGHTS))
    assert all(np.any(learned.view(name)) for name in learned if "lora_B" in name)


def load_text(directory: Path, text: str):
    (directory / "a.toml").write_text(text)
    return load(directory / "a.toml").recipe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[32, 8]", "[64]"), ["dimensions has 64", "hidden is 32"]),
        (("[32, 8]", "[32, 8]\ndimension_weights = [1.0]"), ["1 number", "2 dimensions"]),
        ((", eos = false", ""), ["eos = false"]),
        (("dimensions = [32, 8]", 'pooling = "first"'), ["first token", "last"]),
        (('{ type = "positive-pair" }', '{ type = "preference" }'), ["embedding", "positive-pair"]),
    ],
    ids=["dimensions", "weights", "eos", "first", "documents"],
)
def test_what_does_not_fit_is_reported_before_anything_is_tokenised(tmp_path: Path, change, words) -> None:
    assert DECODER.count(change[0]) == 1
    with pytest.raises(TrainkitError) as told:
        load_text(tmp_path, DECODER.replace(*change))
    said = told.value.problem + told.value.hint
    assert all(word in said for word in words), said


@pytest.mark.parametrize(("key", "devices"), [("batch_size", 1), ("micro_batch_size", 1), ("micro_batch_size", 2)])
def test_a_query_needs_another_one_to_compare_with(tmp_path: Path, key: str, devices: int) -> None:
    recipe = load_text(tmp_path, DECODER)
    train = recipe.train.model_copy(update={key: 1})
    recipe = recipe.model_copy(update={"train": train})
    if devices == 2:  # each has one, and both together two
        check_split(recipe, devices)
        return
    with pytest.raises(TrainkitError, match="compares the examples of a micro-batch") as told:
        check_split(recipe, devices)
    assert told.value.where == f"train.{key}"


def test_an_evaluation_needs_another_query_to_compare_with(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, DECODER)
    evaluate = recipe.evaluate.model_copy(update={"batch_size": 1})
    with pytest.raises(TrainkitError, match="compares the examples of a batch") as told:
        check_split(recipe.model_copy(update={"evaluate": evaluate}), 1)
    assert told.value.where == "evaluate.batch_size"


def test_a_batch_that_is_shown_says_which_text_is_the_query(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    recipe = load_text(place, DECODER)
    cache = caches.build(recipe)
    row = next(show(cache, TrainSet(cache, recipe), 0))
    assert [piece.part for piece in row.pieces] == ["query", "positive"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [({"query": "the cat", "positive": " "}, "empty positive"), ({"query": "cat", "positive": "cat"}, "the same text")],
    ids=["empty", "same"],
)
def test_a_row_that_cannot_be_used_is_reported_with_its_place(tmp_path, monkeypatch, row, problem) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"query": "a", "positive": "b"}, row])
    with pytest.raises(TrainkitError, match=problem) as told:
        caches.build(load_text(tmp_path, DECODER))
    assert "rows.jsonl:2" in str(told.value.where)
