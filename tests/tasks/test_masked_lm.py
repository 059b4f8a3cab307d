"""Masked language modelling: what is hidden, what it costs, and a BERT from Hugging Face trained by a recipe."""

from __future__ import annotations

import json
import re
import shutil
from itertools import combinations
from pathlib import Path

import data_room as room
import equinox as eqx
import jax
import jax.numpy as jnp
import likeness
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from trainer import WORDS, arrays, killed_at, run_of, trainkit, workplace

from trainkit import models
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.tokenizer import vocabulary
from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluator import Evaluator
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.hub.save import save
from trainkit.models.casting import cast
from trainkit.models.loss import blocked_cross_entropy, blocked_cross_entropy_and_correct
from trainkit.models.master_weights import in_compute_dtype
from trainkit.parallel import mesh
from trainkit.recipe import Recipe
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.sections.task import MaskedLM
from trainkit.tasks import build as build_task
from trainkit.tasks.masked_lm import MaskedLMTask
from trainkit.tasks.statistics import Ratio, values_of
from trainkit.train.state import State, initial_live

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = 40
SPEC = Bert(layers=2, hidden=32, heads=2, intermediate=64, context_length=32, vocab_size=VOCAB)
RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
pretrained = "base"
[task]
type = "masked-lm"
[data]
sequence_length = 32
held_out = 0.2
encoding = { type = "pad", too_long = "split" }
[[data.train]]
path = "text/*.txt"
[train]
steps = 160
batch_size = 8
micro_batch_size = 4
[optimizer]
learning_rate = 1e-2
[checkpoint]
keep_every = 40
[evaluate]
every = 80
[track]
aim = false
"""
GPT2 = 'type = "gpt2"\nlayers = 1\nhidden = 16\nheads = 2\n[tokenizer]\npath = "base"'


def bert_tokenizer() -> Tokenizer:
    words = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pair = [(name, words[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=pair)
    return tokenizer


def fresh(seed: int = 0, *, length: int = 32) -> models.encoder.EncoderModel:
    return models.build(SPEC, vocab_size=VOCAB, sequence_length=length, implementation="xla", key=jax.random.key(seed))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of one word each, a BERT with its tokenizer in `base`, and the recipe."""
    directory = workplace(tmp_path_factory.mktemp("masked"), RECIPE, documents=0)
    for number in range(60):
        words = [WORDS[number % 8]] * (5 + number % 50)
        (directory / "text" / f"{number:03}.txt").write_text(" ".join(words))
    base = directory / "base"
    base.mkdir()
    save(base, fresh(), SPEC, dtype="float32", sequence_length=32)
    bert_tokenizer().save(str(base / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    return run_of(place)


def metrics(run: Path, kind: str) -> list[tuple[int, dict[str, float]]]:
    timed = ("time/", "throughput/", "memory/", "host/", "gpu/")
    events = {event["step"]: event["metrics"] for event in read(run) if event["type"] == kind}
    return [(step, {k: v for k, v in told.items() if not k.startswith(timed)}) for step, told in events.items()]


def test_a_bert_from_hugging_face_learns_to_fill_in_hidden_words(uninterrupted: Path) -> None:
    steps = dict(metrics(uninterrupted, "step"))
    first, last = steps[1], steps[160]
    assert last["train/loss"] < first["train/loss"] - 1
    assert last["train/accuracy"] > first["train/accuracy"] + 0.3
    evaluated = dict(metrics(uninterrupted, "evaluated"))
    names = {"validation/held-out/loss", "validation/held-out/accuracy"}
    assert evaluated.keys() == {80, 160} and evaluated[80].keys() == names
    assert 0.3 < evaluated[160]["validation/held-out/accuracy"] <= 1


def test_a_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    for name in ("text", "base"):
        shutil.copytree(place / name, tmp_path / name)
    shutil.copy(place / "tiny.toml", tmp_path)
    killed_at("step 60", tmp_path, "run", "tiny.toml", "--plain")
    done = trainkit(tmp_path, "resume", "tiny", "--plain")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny"
    assert arrays(run, 160) == arrays(uninterrupted, 160)
    assert metrics(run, "evaluated") == metrics(uninterrupted, "evaluated")


def test_an_encoder_is_exported_and_does_not_generate(place: Path, uninterrupted: Path) -> None:
    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    config = json.loads((place / "out" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"] and config["max_position_embeddings"] == 32
    for what in ("tiny", "out"):
        refused = trainkit(place, "generate", what, "the cat")
        assert refused.returncode == 2 and "generates no text" in refused.stderr and "encoder" in refused.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ('pretrained = "base"', 'type = "gpt2"\nlayers = 1\nhidden = 16\nheads = 2\n[tokenizer]\npath = "base"'),
            ["gpt2", "causal", "bert"],
        ),
        (('type = "masked-lm"', 'type = "causal-lm"'), ["causal-lm", "bert", "encoder", "llama"]),
        (("[evaluate]", '[sample]\nevery = 5\nprompts = ["the"]\n[evaluate]'), ["sample.prompts", "bert", "encoder"]),
        (("[data]", "[tokenizer]\ntrain = { vocab_size = 300 }\n[data]"), ["tokenizer.train", "mask token"]),
        (('type = "masked-lm"', 'type = "masked-lm"\nmasked = 0.9\nrandom = 0.2'), ["more than 1"]),
        (('path = "text/*.txt"', 'path = "t.jsonl"\ndocument = { type = "labelled" }'), ["labelled", "template"]),
    ],
    ids=["model", "task", "sample", "tokenizer", "shares", "documents"],
)
def test_what_does_not_fit_the_task_is_reported_with_its_place(place, monkeypatch, change, words) -> None:
    from trainkit.hub.recipe import load as load_with_pretrained

    monkeypatch.chdir(place)
    (place / "wrong.toml").write_text(RECIPE.replace(*change))
    with pytest.raises(TrainkitError) as told:
        load_with_pretrained(place / "wrong.toml")
    assert "wrong.toml:" in str(told.value.where)
    assert all(word in told.value.problem + told.value.hint for word in words), told.value


def test_a_tokenizer_without_a_mask_token_is_refused_before_anything_is_tokenised(place, tmp_path) -> None:
    shutil.copytree(place / "base", tmp_path / "base")
    shutil.copytree(place / "text", tmp_path / "text")
    said = (tmp_path / "base" / "tokenizer.json").read_text().replace("[MASK]", "[HIDE]")
    (tmp_path / "base" / "tokenizer.json").write_text(said)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    refused = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert refused.returncode == 2 and "mask token" in refused.stderr and "tokenizer.json" in refused.stderr
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").glob("shards/*"))


def task(**changes: float) -> MaskedLMTask:
    return MaskedLMTask(MaskedLM(type="masked-lm", **changes), VOCAB, mask=4, special=tuple(range(5)))


def rows(count: int, *, length: int = 32, seed: int = 0) -> dict[str, jax.Array]:
    chance = np.random.default_rng(seed)
    filled = chance.integers(length // 2, length + 1, count).astype(np.int32)
    tokens = chance.integers(5, len(WORDS) + 5, (count, length)).astype(np.uint16)
    tokens[:, 0] = 2
    there = np.arange(length) < filled[:, None]
    return {
        "tokens": jnp.asarray(np.where(there, tokens, 0).astype(np.uint16)),
        "weights": jnp.asarray(there, jnp.float32),
        "filled": jnp.asarray(filled),
        "example": jnp.arange(count, dtype=jnp.uint32),
    }


def test_words_are_distinguished_by_the_names_of_tokens_or_refused(tmp_path: Path) -> None:
    from trainkit.tasks.build import check_tokenizer

    for marks, continuing in ((("wor", "##d", "s"), {1}), (("Ġwor", "d", "s"), {1, 2}), (("wor", "d", "s"), None)):
        names = {name: number for number, name in enumerate((*marks, "[UNK]", "[MASK]", "[SEP]"))}
        tokenizer = Tokenizer(tokenizer_models.WordLevel(names, unk_token="[UNK]"))
        tokenizer.add_special_tokens(["[UNK]", "[MASK]", "[SEP]"])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        of = {"mask_token": "[MASK]", "eos_token": "[SEP]"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(of))
        codec = vocabulary.load(tmp_path / "tokenizer.json", config=True)
        found = codec.continuations
        assert (found if found is None else set(found)) == continuing
        if continuing is None:
            with pytest.raises(TrainkitError, match="do not say where words begin"):
                check_tokenizer(MaskedLM(type="masked-lm", unit="word"), codec)
        check_tokenizer(MaskedLM(type="masked-lm", unit="span"), codec)


def test_the_shares_of_hidden_random_and_kept_tokens_are_those_of_the_recipe() -> None:
    batch, made = rows(2000), task()
    tokens = batch["tokens"].astype(jnp.int32)
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(1), row))(batch["example"])
    hidden = made.choose(tokens, batch["weights"], keys)
    ordinary = np.asarray((batch["weights"] > 0) & (tokens >= 5))
    chosen = np.asarray(hidden.weights_BT) > 0
    assert not (chosen & ~ordinary).any(), "padding and special tokens are never chosen"
    changed = np.asarray(hidden.inputs_BT != tokens)
    assert not (changed & ~chosen).any()
    masked = np.asarray(hidden.inputs_BT == made.mask)
    count = ordinary.sum()
    assert chosen.sum() / count == pytest.approx(0.15, abs=0.01)
    assert (masked & chosen).sum() / chosen.sum() == pytest.approx(0.8, abs=0.02)
    # of the random tokens one in so many is the same again, or the mask
    assert (changed & ~masked).sum() / chosen.sum() == pytest.approx(0.1 * (1 - 2 / VOCAB), abs=0.01)


def chosen(tokens: np.ndarray, seed: int = 0, **more) -> np.ndarray:
    task = MaskedLMTask(
        MaskedLM(type="masked-lm", **more), vocab_size=VOCAB, mask=4, special=(0,), continuing=tuple(range(20, VOCAB))
    )
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(seed), row))(jnp.arange(len(tokens)))
    masked = task.choose(jnp.asarray(tokens), jnp.ones(tokens.shape), keys)
    hidden = np.asarray(masked.inputs_BT)
    assert (hidden[np.asarray(masked.weights_BT) == 0] == tokens[np.asarray(masked.weights_BT) == 0]).all()
    return np.asarray(masked.weights_BT) > 0


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_the_share_of_the_targets_is_that_of_the_recipe_whatever_is_chosen_as_a_whole(unit: str) -> None:
    tokens = np.random.default_rng(0).integers(5, VOCAB, (64, 512))
    found = chosen(tokens, unit=unit)
    # of 32,768 tokens in groups of four or so
    assert abs(found.mean() - 0.15) < 0.015


def test_whole_words_are_chosen_and_spans_are_of_several_tokens_with_one_fate() -> None:
    tokens = np.random.default_rng(0).integers(5, VOCAB, (64, 512))
    found = chosen(tokens, unit="word")
    joined = tokens[:, 1:] >= 20
    assert (found[:, 1:] == found[:, :-1])[joined].all() and not (found[:, 1:] == found[:, :-1])[~joined].all()
    spans = chosen(tokens, unit="span", masked=1.0, random=0.0)
    begins = (spans & ~np.pad(spans, ((0, 0), (1, 0)))[:, :-1]).sum()
    # the mean of the lengths is 3.8, and spans that touch are one
    assert 3.5 < spans.sum() / begins < 5.5


@pytest.mark.parametrize("name", ["gpt2", "llama-2"])
def test_a_word_begins_after_white_space_also_at_the_beginning_of_a_line(name: str) -> None:
    codec = vocabulary.LoadedTokenizer(Path("x"), likeness.FAMILIES[name]().content.encode())
    text = "the cats\nfound another\n\n  cat\tsleeping, the end\nthen"
    placed = codec.encode_placed(text)
    task = MaskedLMTask(
        MaskedLM(type="masked-lm", unit="word", probability=0.5),
        codec.vocab_size,
        mask=0,
        continuing=codec.continuations,
        white=codec.white,
    )
    keys = jax.random.split(jax.random.key(0), 200)
    tokens = jnp.asarray(np.tile(placed.ids, (200, 1)))
    found = np.asarray(task.choose(tokens, jnp.ones(tokens.shape), keys).weights_BT) > 0
    words = [match.span() for match in re.finditer(r"\S+", text)]
    spans = list(zip(placed.begins.tolist(), placed.ends.tolist(), strict=True))
    word_of = [
        next((n for n, word in enumerate(words) if begin < word[1] and word[0] < end), None) for begin, end in spans
    ]
    for one, other in combinations(range(len(word_of)), 2):
        if None not in (word_of[one], word_of[other]):
            same = word_of[one] == word_of[other]
            assert (found[:, one] == found[:, other]).all() == same, (placed.ids[one], placed.ids[other])


def test_static_targets_are_the_same_at_every_step() -> None:
    from trainkit.tasks.task import Loss

    class Kept(MaskedLMTask):
        def loss_of(self, model, batch, masked):
            return Loss(masked.inputs_BT, masked.weights_BT)

    tokens = np.random.default_rng(0).integers(5, VOCAB, (8, 64))
    batch = {"tokens": jnp.asarray(tokens), "weights": jnp.ones(tokens.shape), "example": jnp.arange(8)}
    for static in (True, False):
        task = Kept(MaskedLM(type="masked-lm", static=static), vocab_size=VOCAB, mask=4)
        first, second = (task.loss(None, batch, key=jax.random.key(step)) for step in (1, 2))
        assert np.array_equal(first.sum, second.sum) == static
        assert not np.array_equal(first.weight[0], first.weight[1])


def test_what_is_hidden_of_an_example_does_not_depend_on_its_batch() -> None:
    batch, made, model = rows(6), task(probability=0.5), fresh()
    key = jax.random.key(3)
    whole = made.loss(model, batch, key=key)
    parts = [made.loss(model, {n: a[i : i + 2] for n, a in batch.items()}, key=key) for i in (0, 2, 4)]
    summed = jax.tree.map(lambda *each: sum(each), *parts)
    np.testing.assert_allclose(whole.sum, summed.sum, rtol=1e-5)
    assert whole.weight == summed.weight and whole.metrics == summed.metrics
    other = made.loss(model, batch, key=jax.random.key(4))
    assert other.sum != whole.sum


@pytest.mark.parametrize("vocab", [VOCAB, 50_000])
def test_the_correct_predictions_are_those_of_the_largest_logit(vocab: int) -> None:
    chance = np.random.default_rng(0)
    hidden, table = chance.normal(size=(3, 20, 8)).astype(np.float32), chance.normal(size=(vocab, 8)).astype(np.float32)
    best = (hidden @ table.T).argmax(-1)
    targets = np.where(chance.random(best.shape) < 0.5, best, (best + 1) % vocab)
    weights = chance.integers(0, 2, best.shape).astype(np.float32)
    arguments = tuple(map(jnp.asarray, (hidden, table, targets, weights)))
    expected = ((targets == best) * weights).sum()
    assert blocked_cross_entropy_and_correct(*arguments)[2] == expected

    def loss(hidden):
        total, _, correct = blocked_cross_entropy_and_correct(hidden, *arguments[1:])
        return total + correct, correct

    (_, correct), gradient = jax.value_and_grad(loss, has_aux=True)(arguments[0])
    alone = jax.grad(lambda hidden: blocked_cross_entropy(hidden, *arguments[1:])[0])(arguments[0])
    assert correct == expected and np.array_equal(gradient, alone), "what is counted has no gradient"


def test_an_encoder_trains_in_bfloat16_with_gradients_in_float32() -> None:
    batch, made, model = rows(8), task(), fresh()

    def loss(masters, dtype):
        found = made.loss(in_compute_dtype(masters, dtype), batch, key=jax.random.key(0))
        return found.sum / found.weight

    (exact, expected), (rounded, found) = (
        eqx.filter_jit(eqx.filter_value_and_grad(loss))(model, jnp.dtype(dtype)) for dtype in ("float32", "bfloat16")
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    assert abs(exact - rounded) < 0.02 * exact
    largest = max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.abs(ours - theirs).max() < 0.05 * largest


ENCODINGS = [
    {"type": "concatenate"},
    {"type": "concatenate", "separate": True},
    {"type": "windows", "stride": 10},
    {"type": "pack"},
    {"type": "pad", "buckets": (4, 8)},
    {"type": "pad", "too_long": "split"},
]


def prepared(directory: Path, encoding: dict[str, object]) -> Recipe:
    bert_tokenizer().save(str(directory / "tokenizer.json"))
    texts = [" ".join(WORDS[(i + n) % len(WORDS)] for n in range(1 + i % 23)) for i in range(37)]
    path = room.write_jsonl(directory / "a.jsonl", texts)
    recipe = room.recipe(directory, path, tokenizer={"path": str(directory / "tokenizer.json")}, encoding=encoding)
    changes = {"task": MaskedLM(type="masked-lm"), "model": SPEC}
    return recipe.model_copy(update=changes)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_batches_have_every_token_at_its_own_position_with_what_begins_and_ends_a_text(tmp_path, encoding) -> None:
    recipe = prepared(tmp_path, encoding)
    cache = caches.build(recipe)
    data, made = TrainSet(cache, recipe), build_task(recipe.task, cache.tokenizer)
    assert (cache.tokenizer.mask, cache.tokenizer.beginning_of_text, cache.tokenizer.end_of_text) == (4, 2, 3)
    layout = longest_layout(recipe.data, batch_size=4, vocab_size=VOCAB, shifted=False)
    assert data.layouts()[16] == layout and "targets" not in layout
    counted = tokens = 0
    for step in range(data.batches or -(-data.examples // 4)):
        batch = data.batch(step)
        rows = list(data.rows(step))[: data.examples - 4 * step] if not data.batches else list(data.rows(step))
        for number, row in enumerate(rows):
            width = sum(place.end - place.first for span in row.spans for place in span)
            counted += int(batch["weights"][number].sum())
            assert not batch["weights"][number, width:].any()
            assert (batch["tokens"][number, :width] > 0).all() and batch["example"][number] == row.example
            if "segments" in batch:
                assert (batch["segments"][number] > 0).sum() == width
                begins = batch["positions"][number, :width] == 0
                assert (batch["tokens"][number, :width][begins] == 2).sum() >= begins.sum() - 1
            tokens += width
        assert made.count(batch)["tokens"] > 0
    whole = cache.train.tokens
    if encoding["type"] in ("concatenate", "windows") or encoding.get("too_long") == "split":
        assert counted == whole, "every token is a target once"
    else:
        assert counted == tokens < whole


def test_examples_of_two_sources_have_different_random_keys(tmp_path) -> None:
    one = prepared(tmp_path, {"type": "pad"})
    (source,) = one.data.train
    weighted = tuple(source.model_copy(update={"weight": 1.0, "name": name}) for name in ("a", "b"))
    mixed = one.model_copy(update={"data": one.data.model_copy(update={"train": weighted, "shuffle": False})})
    data = TrainSet(caches.build(mixed), mixed)
    keys: dict[str, list[int]] = {"a": [], "b": []}
    for step in range(6):
        for row, key in zip(data.rows(step), data.batch(step)["example"].tolist(), strict=True):
            keys[row.source].append(key)
            assert row.source == "b" or key == row.example, "runs that began with one source keep their keys"
    assert keys["a"] and keys["b"] and not set(keys["a"]) & set(keys["b"])


@pytest.mark.parametrize("encoding", ENCODINGS[2:5], ids=str)
def test_an_evaluation_over_eight_devices_and_ragged_batches_is_that_of_one(tmp_path, encoding) -> None:
    recipe = prepared(tmp_path, encoding)
    cache = caches.build(recipe)
    made = build_task(recipe.task, cache.tokenizer)
    told = []
    for devices, at_once in ((1, 2), (8, 8)):
        on = mesh.make_mesh(data=devices, fsdp=1)
        sets = {
            "a": EvalSet(
                cache.train,
                recipe.data.train[0],
                recipe.data,
                cache.directory,
                batch_size=8,
                at_once=at_once,
                shifted=False,
            )
        }
        (tmp_path / str(devices)).mkdir()
        log = EventLog(tmp_path / str(devices), attempt=1)
        evaluate = Evaluator(
            sets,
            batch_size=at_once,
            task=made,
            compute=jnp.dtype("float32"),
            mesh=on,
            log=log,
            interrupted=lambda: False,
        )
        params = cast(fresh(length=16), jnp.dtype("float32"))
        for step in (3, 4):
            frozen = jax.tree.map(lambda _: None, params)
            state = State(params, frozen, (), jnp.int32(step), jax.random.key(0), initial_live())
            evaluate(jax.device_put(state, mesh.replicated_sharding(on)), step)
        log.close()
        told += [event["metrics"] for event in read(tmp_path / str(devices)) if event["type"] == "evaluated"]
    assert told[0] == told[1] and told[2] == told[3], "the same tokens are hidden at every step"
    assert told[0]["validation/a/accuracy"] == told[2]["validation/a/accuracy"]
    assert told[0]["validation/a/loss"] == pytest.approx(told[2]["validation/a/loss"], rel=1e-6)


def test_statistics_add_up_and_have_no_value_where_nothing_was_seen() -> None:
    one, other = ({"a": Ratio(np.float32(a), np.float32(2))} for a in (1, 2))
    zero = {"a": Ratio.zero()}
    assert values_of(jax.tree.map(lambda *parts: sum(parts), zero, one, other)) == {"a": 0.75}
    assert values_of(zero) == {}
