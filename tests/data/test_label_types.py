"""Labels that are numbers, or several classes at once: from a row to a batch, a line of text and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest
from pyarrow import parquet

from trainkit.cli.batch_rows import row_lines
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.examples import examples_of, padded_batch
from trainkit.data.batches.layout import longest_layout
from trainkit.data.cache import build as caches
from trainkit.data.checks import find_problems
from trainkit.data.documents.labelled import make_labelled
from trainkit.data.export import export
from trainkit.data.show import show
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.classification_tasks import SequenceClassification
from trainkit.recipe.sections.labelled_documents import Labelled

NAMES = ("a", "b", "c")
NUMBER, PAIR = {"label_type": "number"}, {"label_type": "number", "label_width": 2}
SET, FLAGS = {"label_type": "classes", "classes": NAMES}, {"label_type": "flags", "classes": NAMES}
KEYS = {"label_type": "flags", "label": ("x", "y")}


def made(document: dict[str, Any], row: dict[str, Any]) -> Any:
    return make_labelled(Labelled(type="labelled", **document), {"text": "t", **row}, 0)


@pytest.mark.parametrize(
    ("document", "row", "label"),
    [
        (NUMBER, {"label": 2.5}, [2.5]),
        (NUMBER, {"label": -3}, [-3]),
        (NUMBER, {"label": " 1e-3"}, [np.float32(1e-3)]),
        (NUMBER | {"label": ("x", "y")}, {"x": 1, "y": 0.5}, [1, 0.5]),
        (PAIR, {"label": [1.5, 2]}, [1.5, 2]),
        (SET, {"label": ["c", 0, "c"]}, [1, 0, 1]),
        (SET, {"label": []}, [0, 0, 0]),
        (FLAGS, {"label": [0, True, 1.0]}, [0, 1, 1]),
        (KEYS, {"x": 1, "y": 0}, [1, 0]),
    ],
)
def test_a_label_may_be_numbers_or_several_classes(document: Any, row: Any, label: list[float]) -> None:
    (piece,) = made(document, row)
    assert piece.label.tolist() == label


@pytest.mark.parametrize(
    ("document", "row", "problem", "hint"),
    [
        ({}, {"label": 0.5}, "'label' is 0.5, not a whole number", 'for such labels write "number"'),
        ({"classes": NAMES}, {"label": ["a"]}, "is a list, neither a whole number nor one", 'write "classes"'),
        (NUMBER, {"label": "b"}, "'label' is 'b', not a number", 'for names of classes it is "class"'),
        (NUMBER, {"label": None}, "'label' is null, not a number", ""),
        (NUMBER, {"label": True}, "'label' is a boolean, not a number", ""),
        (NUMBER, {"label": float("nan")}, "'label' is nan, which is not finite as float32", "leave out rows"),
        (NUMBER, {"label": 1e39}, "'label' is 1e+39, which is not finite as float32", ""),
        (NUMBER, {"label": [1.0, 2]}, "'label' is a list of 2, not a number", "document.label_width"),
        (NUMBER, {}, "has no 'label'", "document.label names it"),
        (PAIR, {"label": [1.0]}, "'label' is a list of 1, not a list of 2 numbers", "document.label_width"),
        (PAIR, {"label": 1.0}, "'label' is 1.0, not a list of 2 numbers", "document.label_width"),
        (SET, {"label": "a"}, "'label' is 'a', not a list", 'for one class, document.label_type is "class"'),
        (SET, {"label": ["a", "d"]}, "'label[1]' is 'd', which is none of the classes", "add it"),
        (SET, {"label": [3]}, "'label[0]' is 3, but there are 3 classes", ""),
        (FLAGS, {"label": [0, 2, 1]}, "'label[1]' is 2, neither 0 nor 1", ""),
        (FLAGS, {"label": [0, float("nan"), 1]}, "'label[1]' is nan, neither 0 nor 1", ""),
        (FLAGS, {"label": [0, 1]}, "is a list of 2, not a list of 3 classes", "document.classes"),
        (KEYS, {"x": 1}, "has no 'y'", ""),
    ],
)
def test_a_row_with_a_label_of_another_type_is_refused(document: Any, row: Any, problem: str, hint: str) -> None:
    found = made(document, row)
    assert isinstance(found, tuple)
    assert problem in found[0] and hint in found[1]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"label_type": "classes"}, "needs the names of the classes"),
        ({"label_type": "number", "classes": NAMES}, "leave classes out"),
        ({"label_width": 2}, 'label_width is for label_type = "number"'),
        ({"label": ("x", "y")}, 'several are for "flags" or "number"'),
        ({"label": ("x", "x"), "label_type": "flags"}, "names a key twice"),
        ({"label": ("x", "y"), "label_type": "flags", "classes": NAMES}, "one for each class"),
    ],
)
def test_keys_of_a_label_that_contradict_each_other_are_refused(document: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Labelled(type="labelled", **document)


def recipe_of(directory: Path, rows: list[dict[str, Any]], document: dict[str, Any], **data: Any) -> Any:
    path = room.write_rows(directory / "rows.jsonl", rows)
    source = {"path": str(path), "document": {"type": "labelled", **document}}
    return room.recipe(directory, source, encoding={"type": "pad"}, sequence_length=16, batch_size=9, **data)


@pytest.mark.parametrize(
    ("document", "labels", "shown", "dtype", "none"),
    [
        (NUMBER, [n / 10 for n in range(9)], [n / 10 for n in range(9)], np.float32, np.nan),
        (PAIR, [[n, n / 4] for n in range(9)], [[n, n / 4] for n in range(9)], np.float32, np.nan),
        (SET, [[*range(n % 4)] for n in range(9)], [list(NAMES[: n % 4]) for n in range(9)], np.int32, -1),
    ],
    ids=["number", "numbers", "classes"],
)
def test_a_batch_has_the_label_of_each_text_as_its_row_has_it(
    tmp_path: Path, document: Any, labels: list[Any], shown: list[Any], dtype: type, none: float
) -> None:
    rows = [{"text": f"number {n}", "label": label} for n, label in enumerate(labels)]
    recipe = recipe_of(tmp_path, rows, document)
    cache = caches.build(recipe)
    assert not find_problems(cache, recipe)
    data = TrainSet(cache, recipe)
    batch = data.batch(0)
    layout = longest_layout(recipe.data, batch_size=9, vocab_size=300)
    assert {name: (a.shape, a.dtype) for name, a in batch.items()} == layout and batch["labels"].dtype == dtype
    by_text = {row.pieces[0].where: row for row in show(cache, data, 0)}
    found = [by_text[f"{tmp_path / 'rows.jsonl'}:{n + 1}"] for n in range(9)]
    assert [row.label for row in found] == shown
    lines = [next(row_lines(row, colour=False)) for row in found]
    assert all(str(s[-1] if isinstance(s, list) and s else s or "") in li for s, li in zip(shown, lines, strict=True))
    examples = examples_of(cache.train, recipe.data.train[0], recipe.data, cache.directory)
    examples.wait(None)
    filled = padded_batch(examples, cache.train, np.arange(2), 3, 16)["labels"]
    assert np.array_equal(filled[2], np.full(filled.shape[1:], none), equal_nan=True)
    (written,) = export(cache, recipe.data, tmp_path / "out")
    width = len(NAMES)
    flags = [[float(n in label) for n in range(width)] for label in labels] if document is SET else labels
    assert parquet.read_table(written)["label"].to_pylist() == np.array(flags, np.float32).tolist()


def test_labels_that_are_all_equal_teach_nothing_and_stop_the_run(tmp_path: Path) -> None:
    for document, label, problem in (
        (NUMBER, 0.1, "train: every label is 0.1: with one value there is nothing to learn"),
        (SET, ["b", "c"], "every label is ['b', 'c']: with one set of classes there is nothing to learn"),
    ):
        recipe = recipe_of(tmp_path, [{"text": f"{n}", "label": label} for n in range(4)], document)
        (found,) = find_problems(caches.build(recipe), recipe)
        assert found.level == "error" and problem in found.message


@pytest.mark.parametrize(
    ("document", "labels", "absent"),
    [
        (SET, [["a"], [], ["a"]], "no document has 2 of the 3 classes, 'b', 'c'"),
        (SET, [["a"], ["b", "c"]], ""),
        ({"type": "labelled", "classes": NAMES}, ["a", "c", "a"], "no document has the class 'b'"),
    ],
    ids=["sets", "all", "single"],
)
def test_a_class_that_no_document_has_is_named(tmp_path: Path, document: Any, labels: list[Any], absent: str) -> None:
    recipe = recipe_of(tmp_path, [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)], document)
    task = SequenceClassification(type="sequence-classification", classes=NAMES)
    found = find_problems(caches.build(recipe), recipe.model_copy(update={"task": task}))
    assert [absent in each.message and each.level for each in found] == ["warning"] * bool(absent)


def test_a_number_that_is_none_stops_the_caching_with_file_and_row(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 1}, {"text": "two", "label": "high"}]
    with pytest.raises(TrainkitError, match="'label' is 'high', not a number") as told:
        caches.build(recipe_of(tmp_path, rows, NUMBER))
    assert told.value.where == f"{tmp_path / 'rows.jsonl'}:2"


def test_held_out_copies_are_left_out_with_their_labels(tmp_path: Path) -> None:
    rows = [{"text": f"text {n % 40}", "label": n % 40 + 0.5} for n in range(50)]
    recipe = recipe_of(tmp_path, rows, NUMBER, held_out=0.3)
    cache = caches.build(recipe)
    assert cache.copies
    stream = cache.validation["held-out"]
    for number, section in enumerate(stream.sections):
        arrays = stream.arrays(number)
        indices = arrays.documents["index"][: section.entries]
        assert len(arrays.label_values) == section.entries
        assert arrays.label_values.tolist() == [index % 40 + 0.5 for index in indices.tolist()]
