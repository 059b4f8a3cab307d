"""A recipe with classes is refused, before anything is tokenised, where model, documents or checkpoint do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest
from data_room import tokenizer_json

from trainkit import models
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.checks import find_problems
from trainkit.errors import TrainkitError
from trainkit.hub.config import moved_class
from trainkit.hub.recipe import load, notes
from trainkit.hub.save import save
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.model import Head

RECIPE = """
schema = 1
[model]
pretrained = "base"
[tokenizer]
path = "tokenizer.json"
[task]
type = "sequence-classification"
classes = 3
[data]
sequence_length = 16
encoding = { type = "pad" }
[[data.train]]
path = "rows.jsonl"
document = { type = "labelled" }
[train]
steps = 1
batch_size = 2
[optimizer]
learning_rate = 1e-3
"""
SPEC = Bert(layers=1, hidden=16, heads=2, context_length=16, vocab_size=300)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"alpha {n}", "label": n % 3} for n in range(6)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("tokenizer.json").write_text(tokenizer_json())
    return tmp_path


def checkpoint(head: Head | None) -> None:
    spec = SPEC if head is None else SPEC.with_head(head)
    build = models.build(spec, vocab_size=300, sequence_length=16, implementation="xla", key=jax.random.key(0))
    Path("base").mkdir()
    save(Path("base"), build, spec, dtype="float32", sequence_length=16)


def loaded(*changes: tuple[str, str]):
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("tiny.toml").write_text(text)
    return load(Path("tiny.toml")).recipe


FRESH = ('pretrained = "base"', 'type = "bert"\nlayers = 1\nhidden = 16\nheads = 2')
WRONG = {
    "no count": ([FRESH, ("classes = 3\n", "")], "task.classes is missing"),
    "one class": ([FRESH, ("classes = 3", "classes = 1")], "at least two classes, found 1: add"),
    "weights": ([FRESH, ("classes = 3", "classes = 3\nclass_weights = [1.0, 2.0]")], "2 numbers for 3 classes"),
    "names": (
        [FRESH, ("classes = 3", 'classes = ["a", "b"]'), ('"labelled" }', '"labelled", classes = ["b", "a"] }')],
        "leave one of them out",
    ),
    "packed": ([FRESH, ('type = "pad"', 'type = "pack"')], "a row of its own"),
    "decoder with an end": ([(FRESH[0], FRESH[1].replace("bert", "gpt2"))], "eos = false"),
    "samples": (
        [
            (FRESH[0], FRESH[1].replace("bert", "gpt2")),
            ('"pad"', '"pad", eos = false'),
            ("[train]", '[sample]\nevery = 1\nprompts = ["a"]\n[train]'),
        ],
        "leave [sample] out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_the_classes_is_refused(place: Path, name: str) -> None:
    changes, said = WRONG[name]
    with pytest.raises(TrainkitError) as caught:
        loaded(*changes)
    assert said in str(caught.value)


def test_a_head_of_another_width_is_refused_unless_a_new_one_is_asked_for(place: Path) -> None:
    checkpoint(Head("sequence", 2, ("no", "yes")))
    with pytest.raises(TrainkitError, match="has 2 classes, and the task has 3") as caught:
        loaded()
    assert "new_head = true" in str(caught.value.hint)
    recipe = loaded(("classes = 3", "classes = 3\nnew_head = true"))
    assert any("a new one begins at random" in note for note in notes(recipe))
    same = loaded(("classes = 3", 'classes = ["a", "b"]'))
    assert not any("at random" in note for note in notes(same)) and same.model.head.names == ("a", "b")
    with pytest.raises(TrainkitError, match="BertForSequenceClassification, whose head gives scores of classes"):
        loaded(('"sequence-classification"\nclasses = 3', '"masked-lm"'), ('document = { type = "labelled" }', ""))


@pytest.mark.parametrize("task", ["sequence", "token"])
def test_a_class_that_the_checkpoint_has_by_another_number_is_refused(place: Path, task: str) -> None:
    """The keys of id2label may be in any order, and case does not tell classes apart."""
    checkpoint(Head(task, 3, ("NO", "maybe", "YES")))
    file = Path("base", "config.json")
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"id2label": dict(reversed(config["id2label"].items()))}))
    documents = [] if task == "sequence" else [('"sequence-class', '"token-class'), ('"labelled"', '"tagged"')]
    with pytest.raises(TrainkitError, match='class "yes" as number 2, and the task as 0') as caught:
        loaded(("classes = 3", 'classes = ["yes", "maybe", "no"]'), *documents)
    assert caught.value.where.endswith("base/config.json") and "NO, maybe, YES" in caught.value.problem
    same = 'classes = ["no", "maybe", "yes"]'
    for fitting in (same, "classes = 3", 'classes = ["yes", "maybe", "no"]\nnew_head = true'):
        assert loaded(("classes = 3", fitting), *documents).model.head.width == 3


def test_classes_that_differ_in_case_alone_are_not_taken_for_each_other() -> None:
    head = Head("token", 3, ("B", "b", "O"))
    assert moved_class(head, head, "base") is None
    assert moved_class(head, Head("token", 3, ("b", "B", "O")), "base") is not None


def test_a_checkpoint_without_the_head_is_said_to_begin_it_at_random(place: Path) -> None:
    checkpoint(None)
    assert any("BertForSequenceClassification has beyond it begins at random" in note for note in notes(loaded()))


def test_a_label_outside_the_classes_is_an_error_with_its_row(place: Path) -> None:
    recipe = loaded(FRESH, ("classes = 3", "classes = 2"))
    cache = caches.build(recipe)
    assert set(TrainSet(cache, recipe).batch(0)["labels"]) <= {0, 1, 2}
    problem = next(problem for problem in find_problems(cache, recipe) if problem.level == "error")
    assert "the label 2 at rows.jsonl:3 is none of the 2 classes" in problem.message
