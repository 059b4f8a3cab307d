"""Predictions as a table: a row for each item that is one, with the place that it comes from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainkit.evaluation.results import BEGINNING, PredictionTable, RowOrigin, write_results
from trainkit.events.tail import number


def places(*rows: int) -> list[Any]:
    return [[SimpleNamespace(index=row, first=0, end=1)] for row in rows]


def origin(place: Any) -> RowOrigin:
    return RowOrigin("a.csv", place.index)


def test_rows_of_padding_are_left_out_and_texts_without_a_label_have_none() -> None:
    table = PredictionTable()
    arrays = {
        "label": np.array([1, -1, -1], np.int32),
        "predicted": np.array([0, 1, 0], np.int32),
        "scores": np.array([[1, 0], [0, 2], [0, 0]], np.float32),
        "weights": np.array([1, 0, 0], np.float32),
    }
    table.add(places(4, 7), 3, arrays)
    table.add(places(9), 3, arrays)
    assert table.columns(origin, ("no", "yes")) == {
        "source": ["a.csv"] * 3,
        "row": [4, 7, 9],
        "label": ["yes", None, "yes"],
        "predicted": ["no", "yes", "no"],
        "scores": [[1, 0], [0, 2], [1, 0]],
    }


def test_of_tokens_only_those_with_a_label_are_kept_with_the_document_that_each_is_of() -> None:
    table = PredictionTable()
    label, weights = np.array([-1, 1, 0, -1, 1, -1], np.int32), np.array([0, 1, 1, 0, 1, 0], np.float32)
    packed = [SimpleNamespace(index=5, first=3, end=5), SimpleNamespace(index=6, first=0, end=1)]
    predictions = {"label": label, "predicted": np.zeros(6, np.int32), "weights": weights}
    table.add([packed], 2, predictions)
    found = table.columns(origin, ())
    assert (found["row"], found["token"], found["label"]) == ([5, 6], [4, 0], [1, 0])


def test_texts_are_shortened_and_those_of_wrong_tokens_have_brackets_around_the_token() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(f" w{token}" for token in ids)

    table, weights = PredictionTable(), np.ones(2, np.float32)
    classes = {"label": np.array([0, 1], np.int32), "predicted": np.array([1, 1], np.int32), "weights": weights}
    rows = [[SimpleNamespace(index=row, first=0, end=end)] for row, end in ((3, 100), (4, 2))]
    table.add(rows, 2, classes, np.arange(200).reshape(2, 100))
    first, second = table.columns(origin, (), decode)["text"]
    assert first == " ".join(f"w{token}" for token in range(BEGINNING)) and second == "w100 w101"
    of_tokens = PredictionTable()
    label, predicted = np.array([0, 1, 1], np.int32), np.array([0, 0, 1], np.int32)
    wrong = {"label": label, "predicted": predicted, "weights": np.ones(3, np.float32)}
    of_tokens.add([[SimpleNamespace(index=3, first=0, end=3)]], 1, wrong, np.array([[7, 8, 9]]))
    assert of_tokens.columns(origin, (), decode)["text"] == [None, "w7 [w8] w9", None]


def test_metrics_that_are_not_finite_are_written_as_in_the_log(tmp_path: Path) -> None:
    path = write_results(tmp_path, "dev", 3, {"validation/dev/loss": math.inf})
    assert path == tmp_path / "results" / "dev-3.json" and not (tmp_path / "results" / "dev-3.parquet").exists()
    assert number(json.loads(path.read_text())["metrics"]["validation/dev/loss"]) == math.inf
    assert write_results(tmp_path, "../a/b", 3, {}) == tmp_path / "results" / "..%2Fa%2Fb-3.json"


def test_no_two_sets_share_a_file(tmp_path: Path) -> None:
    names = ["en/a", "en_a", "en%2Fa", "en a", "ä", "x" * 300, "y" + "x" * 300]
    paths = {write_results(tmp_path, name, 1, {}): name for name in names}
    assert list(paths.values()) == names
    assert all(json.loads(path.read_text())["set"] == name for path, name in paths.items())
