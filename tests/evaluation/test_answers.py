"""Answers to the prompts of a validation set: found in packed rows, written, and compared with those in the set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from trainer import RECIPE, trainkit, workplace

from trainkit.data.batches.answers import last_answers
from trainkit.data.cache.section import Section, SourceSpan
from trainkit.errors import TrainkitError
from trainkit.evaluation.targets import items_of_texts
from trainkit.events.tail import read
from trainkit.infer.generator import Request
from trainkit.infer.sampling import Sampling
from trainkit.infer.trained_model import open_run
from trainkit.recipe.toml.load import load

DOCUMENT = '{ type = "prompt", prompt = "say {text}", response = " {answer}" }'
ANSWERED = (
    RECIPE.replace('path = "text/*.txt"', f'path = "rows.jsonl"\ndocument = {DOCUMENT}')
    .replace("held_out = 0.1", f"""encoding = {{ type = "pack" }}
[[data.validation]]
name = "dev"
path = "dev.jsonl"
document = {DOCUMENT}""")
    .replace("[evaluate]\nevery = 10", """[task]
type = "sft"
[evaluate]
predictions = true
metrics = [{ type = "exact-match" }, { type = "rouge" }]
[evaluate.generate]
max_items = 5
max_tokens = 6""")
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = workplace(tmp_path_factory.mktemp("answers"), ANSWERED, documents=1)
    rows = [
        {"text": f"the {word} cat", "answer": f"a {word} dog ran"}
        for word in ("one", "two", "old", "far", "near", "all")
    ]
    for name, some in (("rows", rows * 9), ("dev", rows)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return place


def test_the_last_answer_of_each_document_of_a_row_is_found() -> None:
    tokens = np.array([[5, 6, 7, 8, 9, 1, 2, 3, 0]])
    batch = {
        "tokens": tokens,
        "targets": np.array([[6, 7, 8, 9, 4, 2, 3, 9, 0]]),
        "weights": np.array([[0, 1, 0, 1, 1, 0, 0, 0, 0]], np.float32),
        "segments": np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
    }
    assert list(last_answers(batch)) == [(0, 0, [5, 6, 7, 8], [9, 4])]  # the second document learns nothing
    padded = {name: batch[name] for name in ("tokens", "targets", "weights")} | {"filled": np.array([3])}
    assert list(last_answers(padded)) == [(0, 0, [5, 6], [7])]


def test_an_answer_whose_end_is_cut_off_is_left_out() -> None:
    batch = {
        "tokens": np.array([[5, 6, 7, 8]]),
        "targets": np.array([[6, 7, 8, 9]]),
        "weights": np.array([[0, 1, 1, 1]], np.float32),
        "filled": np.array([4]),
    }
    section = Section(shard=None, source=0, unit=0, tokens=9, documents=1, entries=1, bytes=9)  # type: ignore[arg-type]
    places = [[SourceSpan(section, file=0, index=0, first=0, end=5, size=5)]]
    whole = [(places[0][0], [5, 6], [7, 8, 9])]
    assert list(items_of_texts(batch, places, ends=(9,), positions=4)) == whole
    assert list(items_of_texts(batch, places, ends=(3,), positions=5)) == whole
    assert not list(items_of_texts(batch, places, ends=(3,), positions=4))


def test_a_run_writes_the_answers_that_its_checkpoint_gives_and_measures_them(place: Path) -> None:
    done = trainkit(place, "run", "tiny.toml", "--plain", "--set", "train.steps=3", "--set", "schedule.warmup=0")
    assert done.returncode == 0, done.stdout + done.stderr
    run = place / "runs" / "tiny"
    table = pyarrow.parquet.read_table(run / "results" / "dev-3.parquet").to_pydict()
    rows = list(map(json.loads, (place / "dev.jsonl").read_text().splitlines()))
    assert len(table["row"]) == 5 and len(set(table["row"])) == 5
    assert table["text"] == [f"say {rows[row]['text']}" for row in table["row"]]
    assert table["target"] == [f" {rows[row]['answer']}" for row in table["row"]]
    trained = open_run(run)
    requests = [Request(trained.prompt(text)) for text in table["text"]]
    answers = trained.generator().answers(requests, max_tokens=6, sampling=Sampling(temperature=0))
    assert table["generated"] == [trained.codec.decode(answer.ids) for answer in answers]
    (metrics,) = [event["metrics"] for event in read(run) if event["type"] == "evaluated"]
    assert {"validation/dev/exact_match", "validation/dev/rouge/rougeL", "validation/dev/loss"} <= metrics.keys()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("evaluate.generate.beams", "2", "continues texts without beams"),
        ("data.encoding.type", '"concatenate"', 'needs whole documents, and data.encoding.type = "concatenate"'),
        ("data.validation.0.document", '{ type = "template", template = "{text}" }', "have none .type template."),
    ],
)
def test_sets_without_prompts_beams_and_cut_documents_are_refused(
    place: Path, key: str, value: str, message: str
) -> None:
    with pytest.raises(TrainkitError, match=message):
        load(place / "tiny.toml", [f"{key}={value}", 'task.type="causal-lm"'])
