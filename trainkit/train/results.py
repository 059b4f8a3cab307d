"""Results of evaluations as files: `results/SET-STEP.json`, and every prediction in `results/SET-STEP.parquet`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from trainkit.data.cache.stream import SourceSpan
from trainkit.data.storage import writing
from trainkit.events.log import as_logged

DIRECTORY = "results"


class RowOrigin(NamedTuple):
    """Where an example comes from: a file, and the row in it, from 0."""

    source: str
    row: int


class PredictionTable:
    """The predictions of a set, part by part, and where each item comes from."""

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[Sequence[SourceSpan]], int, Mapping[str, Any]]] = []

    def add(self, places: Sequence[Sequence[SourceSpan]], rows: int, predictions: Mapping[str, Array]) -> None:
        """Add those of a part with so many rows, of which the first have these places and the others are padding.

        They are fetched from the devices when the next part is added, and so without waiting for this one.
        """
        self._fetch_last()
        self._parts.append((places, rows, predictions))

    def columns(self, origin: Callable[[SourceSpan], RowOrigin], classes: Sequence[str]) -> dict[str, list[Any]]:
        """Return a column for each prediction, and `source` and `row`; of tokens also `token`, its place in the
        document from 0.

        Items without a label have a null; of tokens they are left out. Classes are named.
        """
        self._fetch_last()
        found: dict[str, list[Any]] = {}
        for places, rows, predictions in self._parts:
            weights_N = predictions["weights"]
            of_row = len(weights_N) // rows
            items = np.arange(len(weights_N))
            kept = items[(items // of_row < len(places)) & ((of_row == 1) | (weights_N > 0))]
            located = [_locate(places[item // of_row], item % of_row) for item in kept.tolist()]
            origins = [origin(place) for place, _ in located]
            part: dict[str, list[Any]] = {
                "source": [each.source for each in origins],
                "row": [each.row for each in origins],
            }
            if of_row > 1:
                part["token"] = [token for _, token in located]
            for name, array in predictions.items():
                if name != "weights":
                    part[name] = _named(array[kept], classes)
            for name, column in part.items():
                found.setdefault(name, []).extend(column)
        return found

    def _fetch_last(self) -> None:
        if self._parts:
            places, rows, predictions = self._parts.pop()
            self._parts.append((places, rows, jax.device_get(predictions)))


def _locate(places: Sequence[SourceSpan], position: int) -> tuple[SourceSpan, int]:
    """Return the document at a position of a row, and the token of it that stands there."""
    for place in places[:-1]:
        if position < place.end - place.first:
            return place, place.first + position
        position -= place.end - place.first
    return places[-1], places[-1].first + position


def _named(array: np.ndarray, classes: Sequence[str]) -> list[Any]:
    if classes and np.issubdtype(array.dtype, np.integer):
        return [classes[number] if number >= 0 else None for number in array.tolist()]
    return list(array.tolist())


def write_results(
    run_directory: Path,
    name: str,
    step: int,
    metrics: Mapping[str, float],
    table: Mapping[str, Any] | None = None,
) -> Path:
    """Write the metrics of a set after a step and, where given, a table of its predictions; return the JSON file.

    Raises:
        TrainkitError: the disk refuses them.
    """
    directory, file_name = run_directory / DIRECTORY, re.sub(r"[^\w.@-]", "_", f"{name}-{step}")
    if table is not None:
        import pyarrow
        from pyarrow import parquet

        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table(dict(table)), buffer)
        with writing(directory / f"{file_name}.parquet") as file:
            file.write(buffer.getvalue())
    path = directory / f"{file_name}.json"
    found = {"set": name, "step": step, "metrics": {key: as_logged(value) for key, value in metrics.items()}}
    with writing(path) as file:
        file.write(json.dumps(found, indent=1).encode() + b"\n")
    return path
