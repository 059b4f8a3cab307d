"""Answering questions by a recipe: a BERT finds the answers of held-out questions, and its export finds the same in
transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jax.numpy as jnp
import likeness
import numpy as np
import pytest
from parity import _read
from pyarrow import parquet
from reference import Reference
from trainer import evaluations, inputs_copied, losses, trainkit

from trainkit.tasks.text_metrics import squad_words

RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
type = "bert"
layers = 1
hidden = 32
heads = 2
initializer_range = 0.2
[tokenizer]
path = "wordpiece"
[task]
type = "question-answering"
max_answer_length = 4
[data]
sequence_length = 16
held_out = 0.2
encoding = { type = "windows", stride = 3 }
[[data.train]]
path = "questions.jsonl"
document = { type = "question", unanswerable = true }
[train]
steps = 80
batch_size = 16
micro_batch_size = 16
[optimizer]
learning_rate = 1e-2
[evaluate]
every = 40
predictions = true
[track]
aim = false
"""
ANSWERS = {"who barked": "a dog", "where": "on a mat", "how many": "42 cats"}
OTHERS = ["the", "and", "key", "value", "you", "sat"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each context has all answers, or all but that to its question, among other words: some need two windows."""
    directory, chance = tmp_path_factory.mktemp("answers"), random.Random(0)
    path = likeness.write("wordpiece", directory / "wordpiece")
    tokenizer = json.loads(path.read_text())
    for part in tokenizer["post_processor"]["pair"][3:]:  # as BERT's own says which tokens are of the second text
        next(iter(part.values()))["type_id"] = 1
    path.write_text(json.dumps(tokenizer))
    with (directory / "questions.jsonl").open("w") as file:
        for _ in range(400):
            question, answer = chance.choice(list(ANSWERS.items()))
            parts = list(ANSWERS.values())
            if known := chance.random() < 0.8:
                answers = [answer]
            else:
                parts.remove(answer)
                answers = []
            chance.shuffle(parts)
            context = " ".join(f"{' '.join(chance.choices(OTHERS, k=chance.randrange(3)))} {part}" for part in parts)
            found = {"text": answers, "answer_start": [context.index(answer)] if known else []}
            file.write(json.dumps({"question": question, "context": context, "answers": found}) + "\n")
    (directory / "tiny.toml").write_text(RECIPE)
    return directory


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Path:
    done = trainkit(place, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "runs" / "tiny"


def rows_of(place: Path) -> list[dict]:
    return [json.loads(line) for line in (place / "questions.jsonl").read_text().splitlines()]


def test_the_answers_to_held_out_questions_are_found(place: Path, uninterrupted: Path) -> None:
    assert losses(uninterrupted)[80] < losses(uninterrupted)[1] / 4
    last = evaluations(uninterrupted)[80]
    assert last["validation/held-out/exact_match"] > 0.9 and last["validation/held-out/f1"] > 0.9
    table = parquet.read_table(uninterrupted / "results" / "held-out-80.parquet").to_pylist()
    rows = rows_of(place)
    assert len({item["row"] for item in table}) == len(table) > 40, "one answer to each question"
    assert any(not item["target"] for item in table)
    for item in table:
        row = rows[item["row"]]
        assert item["text"] == row["question"] and [item["target"]] == (row["answers"]["text"] or [""])
    right = np.mean([squad_words(item["generated"]) == squad_words(item["target"]) for item in table])
    assert right == pytest.approx(last["validation/held-out/exact_match"], abs=1e-9)


def test_an_answer_is_all_that_is_shown_as_learned(place: Path, uninterrupted: Path) -> None:
    shown = trainkit(place, "inspect", "tiny", "--step", "0", "--rows", "16", "--json").stdout.splitlines()
    learned = {
        "".join(text for piece in json.loads(line)["pieces"] for text, is_learned in piece["runs"] if is_learned)
        for line in shown
    }
    assert {text.strip() for text in learned} == {*ANSWERS.values(), "[CLS]"}


def test_the_export_finds_the_same_answers_in_transformers(
    place: Path, uninterrupted: Path, reference: Reference, tmp_path: Path
) -> None:
    done = trainkit(place, "export", "tiny", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]
    rows, model = rows_of(place), _read(tmp_path / "out")
    table = parquet.read_table(uninterrupted / "results" / "held-out-80.parquet").to_pylist()
    # those of one window
    asked = [item for item in table if len(rows[item["row"]]["context"].split()) < 10 and item["generated"]][:8]
    pairs = [(rows[item["row"]]["question"], rows[item["row"]]["context"]) for item in asked]
    found = reference.find_answers(tmp_path / "out", pairs, longest=4)
    assert len(asked) > 4 and [each["text"] for each in found] == [item["generated"] for item in asked]
    for each in found:
        tokens = jnp.asarray([each["ids"]])
        types = jnp.cumsum(tokens == each["ids"][-1], axis=1) - (tokens == each["ids"][-1]) > 0
        segments = jnp.ones_like(tokens)
        hidden, _ = model.hidden_and_penalty(tokens, segments_BT=segments, types_BT=types.astype(jnp.int32))
        scores = np.asarray(model.scores(hidden, segments))[0]
        np.testing.assert_allclose(scores[:, 0], each["starts"], atol=1e-4)
        np.testing.assert_allclose(scores[:, 1], each["ends"], atol=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('type = "windows", stride = 3', 'type = "pad"'), ["windows", "pad"]),
        (('type = "bert"', 'type = "gpt2"'), ["question-answering", "gpt2", "bert"]),
        (('{ type = "question", unanswerable = true }', '{ type = "labelled" }'), ["labelled", "question"]),
        (("every = 40\n", 'every = 40\nmetrics = [{ type = "exact-match" }]\n'), ["exact-match", "no metric fits"]),
    ],
    ids=["encoding", "model", "documents", "metric"],
)
def test_a_recipe_that_cannot_answer_is_refused(
    place: Path, tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    (inputs_copied(place, tmp_path) / "tiny.toml").write_text(RECIPE.replace(*change))
    done = trainkit(tmp_path, "check", "tiny.toml")
    assert done.returncode == 2
    assert all(word in done.stdout + done.stderr for word in words), done.stdout + done.stderr
