"""Tagging words by a recipe: a BERT learns from packed rows, survives a kill, and trains the same on eight devices."""

from __future__ import annotations

import json
import random
from pathlib import Path

import likeness
import numpy as np
import pytest
from pyarrow import parquet
from trainer import WORDS, arrays, evaluations, inputs_copied, killed_and_resumed, losses, run_of, trainkit

CLASSES = ("other", "animal", "place")
WORD_CLASSES = {"cat": 1, "dog": 1, "mat": 2, "near": 2}
RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
type = "bert"
layers = 2
hidden = 32
heads = 2
[tokenizer]
path = "wordpiece"
[task]
type = "token-classification"
[data]
sequence_length = 48
held_out = 0.2
encoding = { type = "pack" }
[[data.train]]
path = "words.jsonl"
document = { type = "tagged", words = "tokens", labels = "tags", classes = ["other", "animal", "place"] }
[train]
steps = 60
batch_size = 8
micro_batch_size = 4
[optimizer]
learning_rate = 1e-2
[checkpoint]
keep_every = 20
[evaluate]
every = 30
metrics = [{ type = "f1" }]
predictions = true
[track]
aim = false
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, chance = tmp_path_factory.mktemp("tagging"), random.Random(0)
    likeness.write("wordpiece", directory / "wordpiece")
    with (directory / "words.jsonl").open("w") as file:
        for _ in range(400):
            words = chance.choices([*WORDS, *WORD_CLASSES, *WORD_CLASSES], k=chance.randrange(2, 12))
            tags = [CLASSES[WORD_CLASSES.get(word, 0)] for word in words]
            file.write(json.dumps({"tokens": words, "tags": tags}) + "\n")
    (directory / "tiny.toml").write_text(RECIPE)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    return run_of(place)


def test_words_of_held_out_texts_get_their_tags(uninterrupted: Path) -> None:
    found = losses(uninterrupted)
    assert found[1] == pytest.approx(np.log(3), abs=0.2) and found[60] < 0.1
    last = evaluations(uninterrupted)[60]
    assert last["validation/held-out/accuracy"] > 0.95 and last["validation/held-out/f1"] > 0.9
    shown = trainkit(uninterrupted.parent.parent, "inspect", "tiny", "--step", "0", "--rows", "8").stdout
    assert "[animal]" in shown and "the[other]" in shown


def test_the_predictions_are_those_of_the_words_of_each_row(uninterrupted: Path) -> None:
    table = parquet.read_table(uninterrupted / "results" / "held-out-60.parquet").to_pydict()
    rows = [json.loads(line) for line in (uninterrupted.parent.parent / "words.jsonl").read_text().splitlines()]
    for row in set(table["row"]):
        labels = [label for label, of in zip(table["label"], table["row"], strict=True) if of == row]
        assert labels == [CLASSES[tag] if isinstance(tag, int) else tag for tag in rows[row]["tags"]]
    right = np.mean(np.array(table["label"]) == np.array(table["predicted"]))
    assert right == pytest.approx(evaluations(uninterrupted)[60]["validation/held-out/accuracy"], rel=1e-6)


def test_written_predictions_have_the_labels_of_each_row_in_its_order(place: Path, uninterrupted: Path) -> None:
    from pyarrow import parquet

    done = trainkit(place, "eval", "tiny", "--predictions")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (place / "words.jsonl").read_text().splitlines()]
    found: dict[int, list[tuple[int, str]]] = {}
    for item in parquet.read_table(uninterrupted / "results" / "held-out-60.parquet").to_pylist():
        found.setdefault(item["row"], []).append((item["token"], item["label"]))
    assert len(found) > 40
    for row, items in found.items():
        assert items == sorted(items)
        assert [label for _, label in items] == rows[row]["tags"]


def test_a_run_that_was_killed_ends_bit_for_bit_as_one_that_was_not(
    place: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    inputs_copied(place, tmp_path)
    run = killed_and_resumed(tmp_path, saved=20)
    assert arrays(run, 60) == arrays(uninterrupted, 60)
    assert evaluations(run) == evaluations(uninterrupted)


def test_eight_devices_and_other_micro_batches_train_as_one(place: Path, uninterrupted: Path, tmp_path: Path) -> None:
    done = trainkit(
        inputs_copied(place, tmp_path), "run", "tiny.toml", "--plain", "--set", "train.micro_batch_size=1", devices=8
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny"
    for step, loss in losses(run).items():
        assert loss == pytest.approx(losses(uninterrupted)[step], abs=1e-3), step
    for name, value in evaluations(run)[60].items():
        assert value == pytest.approx(evaluations(uninterrupted)[60][name], abs=5e-3), name


def test_an_exported_tagger_names_its_classes(uninterrupted: Path, tmp_path: Path) -> None:
    done = trainkit(uninterrupted.parent.parent, "export", "tiny", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert tuple(config["id2label"].values()) == CLASSES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('type = "pack"', 'type = "concatenate"'), ["pad", "pack", "windows"]),
        (('type = "bert"', 'type = "gpt2"'), ["token-classification", "gpt2", "bert"]),
        (("[task]", '[task]\nclasses = ["a", "b"]'), ["task.classes", "document.classes"]),
        (('type = "token-classification"', 'type = "sequence-classification"'), ["tagged", "labelled"]),
    ],
    ids=["encoding", "model", "classes", "documents"],
)
def test_a_recipe_that_cannot_tag_is_refused(
    place: Path, tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    (inputs_copied(place, tmp_path) / "tiny.toml").write_text(RECIPE.replace(*change))
    done = trainkit(tmp_path, "check", "tiny.toml")
    assert done.returncode == 2
    assert all(word in done.stdout + done.stderr for word in words), done.stdout + done.stderr
