"""Classifying texts by a recipe: a BERT of pairs and a GPT-2 with an adapter are trained with dropout, killed, stopped
early and exported."""

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
from reference import Reference
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from trainer import WORDS, arrays, ending, evaluations, inputs_copied, killed_and_resumed, losses, trainkit

from trainkit import models
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.save import save
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.rundir.checkpoint_files import best

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLASSES = {"animal": ("cat", "dog"), "weather": ("rain", "fell"), "place": ("home", "roads")}
OTHERS = [word for word in WORDS if not any(word in words for words in CLASSES.values())]
VOCAB = 40
SIZES = {
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "intermediate": 64,
    "context_length": 32,
    "vocab_size": VOCAB,
    "initializer_range": 0.2,
}
#: The loss falls, so that its highest value, the "best", is that of the first evaluation, and the run ends at step 120.
RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
pretrained = "base"
dropout = 0.1
attention_dropout = 0.1
[task]
type = "sequence-classification"
[data]
sequence_length = 32
held_out = 0.2
encoding = { type = "pad" }
[[data.train]]
path = "pairs.jsonl"
document = { type = "labelled", texts = ["first", "second"], classes = ["animal", "weather", "place"] }
[train]
steps = 130
batch_size = 16
micro_batch_size = 8
[optimizer]
learning_rate = 3e-3
[checkpoint]
keep_every = 40
best = { metric = "validation/held-out/loss", mode = "max" }
[evaluate]
every = 30
patience = 3
metrics = [{ type = "f1" }, { type = "confusion-matrix" }, { type = "auroc" }]
[track]
aim = false
"""


def tokenizer(*, single: str, pair: str) -> Tokenizer:
    words = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS]))}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [(name, words[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    return tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs whose second text says their class, the first one that of another; a BERT without a head and a GPT-2."""
    directory, chance = tmp_path_factory.mktemp("classification"), random.Random(0)

    def text(name: str) -> str:
        words = [*chance.choices(OTHERS, k=chance.randrange(2, 9)), chance.choice(CLASSES[name])]
        return " ".join(chance.sample(words, len(words)))

    with (directory / "pairs.jsonl").open("w") as file:
        for _ in range(203):
            name, other = chance.sample(list(CLASSES), 2)
            file.write(json.dumps({"first": text(other), "second": text(name), "label": name}) + "\n")
    (directory / "tiny.toml").write_text(RECIPE)
    for name, spec, single, pair in (
        ("base", Bert(**SIZES), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        ("decoder", Gpt2(**SIZES), "$A", "$A $B:1"),
    ):
        (directory / name).mkdir()
        model = models.build(spec, vocab_size=VOCAB, sequence_length=32, implementation="xla", key=jax.random.key(1))
        save(directory / name, model, spec, dtype="float32", sequence_length=32)
        tokenizer(single=single, pair=pair).save(str(directory / name / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BertForSequenceClassification has beyond it begins at random" in done.stdout + done.stderr
    return place / "runs" / "tiny"


def copied(place: Path, to: Path, *changes: tuple[str, str]) -> Path:
    inputs_copied(place, to)
    text = RECIPE
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (to / "tiny.toml").write_text(text)
    return to


def test_the_classes_of_held_out_pairs_are_reported_by_their_second_texts(uninterrupted: Path) -> None:
    found = losses(uninterrupted)
    assert found[120] < 0.4 < found[1]
    last = evaluations(uninterrupted)[120]
    assert last["validation/held-out/accuracy"] > 0.8 and last["validation/held-out/f1"] > 0.8
    batch = json.loads(trainkit(uninterrupted.parent.parent, "inspect", "tiny", "--json").stdout.splitlines()[0])
    assert batch["label"] in ("animal", "weather", "place")


def test_with_dropout_a_killed_run_ends_bit_for_bit_with_the_same_best_and_the_same_early_end(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    copied(place, tmp_path)
    run = killed_and_resumed(tmp_path, saved=80)
    assert arrays(run, 120) == arrays(uninterrupted, 120) and arrays(run, 30) == arrays(uninterrupted, 30)
    assert evaluations(run) == evaluations(uninterrupted) and losses(run) == losses(uninterrupted)
    assert best(run) == best(uninterrupted) and best(run).step == 30
    assert ending(run) == ending(uninterrupted) and "stopped early" in ending(run)[2]


def test_eight_devices_and_other_micro_batches_drop_and_train_as_one_and_evaluate_exactly_as_one(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    copied(place, tmp_path)
    arguments = ("--set", "train.steps=6", "--set", "schedule.type=constant")
    single = trainkit(place, "run", "tiny.toml", "--plain", *arguments, "--set", "run.name=single")
    several = trainkit(
        tmp_path, "run", "tiny.toml", "--plain", *arguments, "--set", "train.micro_batch_size=1", devices=8
    )
    assert single.returncode == several.returncode == 0, single.stderr + several.stderr
    one, eight = place / "runs" / "single", tmp_path / "runs" / "tiny"
    assert losses(eight) == pytest.approx(losses(one), rel=1e-4)
    assert evaluations(eight)[6] == pytest.approx(evaluations(one)[6], rel=1e-4)
    # one device evaluates row by row; eight fill up their last rows, which no metric may count
    again = json.loads(trainkit(tmp_path, "eval", "tiny", "--json").stdout)["metrics"]["held-out"]
    assert sum(again[f"validation/held-out/confusion_matrix/{a}/{b}"] for a in CLASSES for b in CLASSES) % 8
    found, loss = evaluations(eight)[6], "validation/held-out/loss"
    assert found.pop(loss) == pytest.approx(again.pop(loss), rel=1e-6)
    assert found == again and len(found) > 5


def some_rows(place: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (place / "pairs.jsonl").read_text().splitlines()[:40]]


def right(found: dict[str, Any], rows: list[dict[str, str]]) -> int:
    """Return of how many rows the class with the largest score is the label."""
    told = [found["names"][int(np.argmax(scores))] for scores in found["scores"]]
    return sum(name == row["label"] for name, row in zip(told, rows, strict=True))


def classified_by_us(out: Path, ids: list[list[int]], types: list[list[int]], filled: list[int]) -> np.ndarray:
    spec = read_spec(out)
    shapes = eqx.filter_eval_shape(
        lambda key: models.build(spec, vocab_size=VOCAB, sequence_length=32, implementation="xla", key=key),
        jax.random.key(0),
    )
    model = load_params(out, shapes, head=spec.head)
    segments = (jnp.arange(len(ids[0])) < jnp.asarray(filled)[:, None]).astype(jnp.int32)
    hidden, _ = model.hidden_and_penalty(jnp.asarray(ids), segments_BT=segments, types_BT=jnp.asarray(types))
    return np.asarray(model.scores(hidden, segments))


def test_an_export_gives_the_same_scores_and_names_in_transformers(uninterrupted: Path, reference: Reference) -> None:
    place, out = uninterrupted.parent.parent, uninterrupted.parent.parent / "out"
    done = trainkit(place, "export", "tiny", "out")
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == dict(zip("012", CLASSES, strict=True))
    rows = some_rows(place)
    found = reference.classify(out, [(row["first"], row["second"]) for row in rows], head="sequence")
    assert found["names"] == list(CLASSES) and right(found, rows) >= 0.9 * len(rows)
    separator = SPECIAL.index("[SEP]")
    filled = [int(np.flatnonzero(np.array(row) == separator)[-1]) + 1 for row in found["ids"]]
    np.testing.assert_allclose(
        classified_by_us(out, found["ids"], found["types"], filled), found["scores"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_that_classifies_continues_no_text(uninterrupted: Path, command: str) -> None:
    place = uninterrupted.parent.parent
    done = trainkit(place, command, "tiny", *(("the cat",) if command == "generate" else ()))
    assert done.returncode != 0 and "scores of 3 classes" in done.stderr and "export" in done.stderr


def test_an_adapter_is_trained_with_a_whole_head_and_exported_merged(
    place: Path, tmp_path: Path, reference: Reference
) -> None:
    single = 'type = "labelled", texts = ["second"]'
    copied(
        place,
        tmp_path,
        ('"base"', '"decoder"'),
        ('type = "pad"', 'type = "pad", eos = false'),
        ('type = "labelled", texts = ["first", "second"]', single),
        ("dropout = 0.1\nattention_dropout = 0.1\n", ""),
        ("[data]", '[adapter]\ntype = "lora"\nrank = 4\ndropout = 0.05\n[data]'),
        ("3e-3", "1e-2"),
    )
    run = killed_and_resumed(tmp_path, saved=40)
    assert evaluations(run)[120]["validation/held-out/accuracy"] > 0.9
    kept = {name for name in arrays(run, 120) if "params" in name}
    assert any("classifier.output.weight" in name for name in kept) and not any("token_embedding" in n for n in kept)
    refused = trainkit(tmp_path, "export", "tiny", "alone", "--format", "peft")
    assert refused.returncode != 0 and "--format hf" in refused.stderr
    done = trainkit(tmp_path, "export", "tiny", "out", "--format", "hf")
    assert done.returncode == 0, done.stderr
    rows = some_rows(tmp_path)
    found = reference.classify(tmp_path / "out", [row["second"] for row in rows], head="sequence")
    assert right(found, rows) >= 0.9 * len(rows)
    nothing, filled = np.zeros_like(found["ids"]).tolist(), [len(row["second"].split()) for row in rows]
    ours = classified_by_us(tmp_path / "out", found["ids"], nothing, filled)
    np.testing.assert_allclose(ours, found["scores"], rtol=1e-4, atol=1e-5)
