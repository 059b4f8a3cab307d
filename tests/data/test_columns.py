"""Columns of numbers from their files to batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import data_room as room
import numpy as np
import pytest

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.documents.columns import make
from trainkit.data.documents.pieces import RowContext
from trainkit.data.export import check_exportable
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.document import Columns

DOCUMENT = {"type": "columns", "features": ("a", "b"), "target": "y"}
TABLE = [{"a": i, "b": i / 4, "y": -i * 1.5} for i in range(11)]


def written(directory: Path, suffix: str) -> Path:
    path = directory / f"rows.{suffix}"
    if suffix == "csv":
        path.write_text("a,b,y,note\n" + "".join(f"{row['a']}, {row['b']},{row['y']:e},x\n" for row in TABLE))
    elif suffix == "jsonl":
        room.write_rows(path, TABLE)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(TABLE), path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_epoch_has_each_row_once_as_float32_from_every_format(tmp_path: Path, suffix: str) -> None:
    recipe = room.recipe(tmp_path, {"path": str(written(tmp_path, suffix)), "document": DOCUMENT}, batch_size=11)
    batch = TrainSet(caches.build(recipe), recipe).batch(0)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        "features": ((11, 2), np.float32),
        "target": ((11,), np.float32),
        "weights": ((11,), np.float32),
    }
    seen = sorted(np.column_stack([batch["features"], batch["target"]]).tolist())
    assert seen == [[row["a"], row["b"], row["y"]] for row in TABLE]


def test_numbers_are_not_exported_as_token_ids(tmp_path: Path) -> None:
    text, numbers = str(tmp_path / "a.txt"), {"path": str(tmp_path / "rows.csv"), "document": DOCUMENT}
    check_exportable(room.recipe(tmp_path, text).data)
    with pytest.raises(TrainkitError, match=r"--export.*columns, not tokens") as told:
        check_exportable(room.recipe(tmp_path, numbers).data)
    assert told.value.where == "data.train.0.document"


REFUSED = {
    "missing": ({"a": 1, "y": 2}, "has no 'b'"),
    "text": ({"a": 1, "b": "two", "y": 2}, "'b' is a string, not a number"),
    "null": ({"a": 1, "b": None, "y": 2}, "'b' is null, not a number"),
    "boolean": ({"a": 1, "b": True, "y": 2}, "'b' is a boolean, not a number"),
    "nan": ({"a": 1, "b": float("nan"), "y": 2}, "'b' is nan, which is not finite as float32"),
    "infinite": ({"a": 1, "b": 2, "y": "inf"}, "'y' is a string, which is not finite as float32"),
    "large": ({"a": 1, "b": 1e39, "y": 2}, "'b' is 1e+39, which is not finite as float32"),
    "whole": ({"a": 10**400, "b": 1, "y": 2}, "'a' is"),
}


@pytest.mark.parametrize(("row", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_finite_number_is_refused_with_its_key(row: dict[str, Any], problem: str) -> None:
    found = make(Columns(**DOCUMENT), row, 0, RowContext())
    assert isinstance(found, tuple) and found[0].startswith(problem), found


def test_the_error_names_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*TABLE[:3], {"a": 1, "b": "x", "y": 0}]))
    recipe = room.recipe(tmp_path, {"path": str(path), "document": DOCUMENT})
    with pytest.raises(TrainkitError, match=r"rows\.jsonl:4.*'b' is a string, not a number"):
        caches.build(recipe)
