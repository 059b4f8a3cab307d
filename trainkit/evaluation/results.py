"""Results of evaluations as files: `results/SET-STEP.json`, and every prediction in `results/SET-STEP.parquet`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import jax
import numpy as np
from jaxtyping import Array

from trainkit.data.cache.section import SourceSpan
from trainkit.data.cache.token_cache import Cache
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import write_file
from trainkit.events.tail import as_logged
from trainkit.parallel import hosts
from trainkit.recipe import Recipe
from trainkit.redaction import redact

DIRECTORY = "results"
#: How many tokens of a text predictions show: from its beginning, and on both sides of a token.
BEGINNING, AROUND = 64, 6

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Returns the text of tokens."""


class RowOrigin(NamedTuple):
    """Where an example comes from: a file, and the row in it, from 0."""

    source: str
    row: int


class _Part(NamedTuple):
    """Predictions of some rows of a batch."""

    places: Sequence[Sequence[SourceSpan]]
    rows: int
    predictions: Mapping[str, Any]
    tokens: np.ndarray | None
    """(rows, T)."""


class PredictionTable:
    """The predictions of a set, part by part, and where each item comes from."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._texts: list[tuple[SourceSpan, Mapping[str, str]]] = []

    def add_texts(self, place: SourceSpan, texts: Mapping[str, str]) -> None:
        """Add the texts of an example by the names of their columns. A table has either texts or predictions."""
        assert not self._parts, "texts are examples, and predictions may be parts of them"
        self._texts.append((place, texts))

    def add(
        self,
        places: Sequence[Sequence[SourceSpan]],
        rows: int,
        predictions: Mapping[str, Array],
        tokens: np.ndarray | None = None,
    ) -> None:
        """Add the predictions of a part of `rows` rows; `tokens`, (rows, T), are theirs, to show texts. The first rows
        come from `places`; the others are padding.

        Predictions are fetched from the devices when the next part is added, so that nothing waits for this part.
        """
        self._fetch_last()
        self._parts.append(_Part(places, rows, predictions, tokens))

    def take_rows(self) -> Iterator[tuple[Sequence[SourceSpan], dict[str, np.ndarray]]]:
        """Remove all predictions, and yield those of each row that counts, with where it comes from."""
        self._fetch_last()
        parts, self._parts = self._parts, []
        for places, _, predictions, _ in parts:
            for row in np.flatnonzero(predictions["weights"][: len(places)] > 0).tolist():
                yield places[row], {name: array[row] for name, array in predictions.items()}

    def columns(
        self, origin: Callable[[SourceSpan], RowOrigin], classes: Sequence[str], decode: Decode | None = None
    ) -> dict[str, list[Any]]:
        """Return a column for each prediction, and the columns `source` and `row`; for tokens also `token`, the token's
        index in its document from 0. With `decode` also `text`: the beginning of the text or, of a token whose
        prediction is wrong, the tokens around it, with brackets around itself; null for other tokens.

        An item without a label has null as its label; a token without a label is left out. Classes are given by name.
        """
        if self._texts:
            origins = [origin(place) for place, _ in self._texts]
            columns: dict[str, list[Any]] = {"source": [o.source for o in origins], "row": [o.row for o in origins]}
            return columns | {name: [texts[name] for _, texts in self._texts] for name in self._texts[0][1]}
        self._fetch_last()
        table: dict[str, list[Any]] = {}
        for places, rows, predictions, tokens in self._parts:
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
            if decode is not None and tokens is not None and tokens.ndim == 2:
                shown = kept if of_row == 1 else kept[_wrong(predictions)[kept]]
                texts = {item: _text(tokens, places, item, of_row, decode) for item in shown.tolist()}
                part["text"] = [texts.get(item) for item in kept.tolist()]
            for name, column in part.items():
                table.setdefault(name, []).extend(column)
        if "begins" in table:
            table["begins"] = _begin_documents(table)
        return table

    def _fetch_last(self) -> None:
        if self._parts:
            last = self._parts.pop()
            self._parts.append(last._replace(predictions=jax.device_get(last.predictions)))


def _begin_documents(table: Mapping[str, list[Any]]) -> list[bool]:
    """Return which tokens of a table are the first of their documents in it, even if a document has several windows."""
    documents = list(zip(table["source"], table["row"], strict=True))
    first: dict[tuple[str, int], int] = {}
    for document, token in zip(documents, table["token"], strict=True):
        first[document] = min(token, first.get(document, token))
    return [first[document] == token for document, token in zip(documents, table["token"], strict=True)]


def _locate(places: Sequence[SourceSpan], position: int) -> tuple[SourceSpan, int]:
    """Return the document at a position of a row, and the index of the token there in this document."""
    for place in places[:-1]:
        if position < place.end - place.first:
            return place, place.first + position
        position -= place.end - place.first
    return places[-1], places[-1].first + position


def _wrong(predictions: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which items have another class than their label, (N,); none where there are no classes."""
    if not predictions.keys() >= {"label", "predicted"}:
        return np.zeros(len(predictions["weights"]), bool)
    wrong: np.ndarray = predictions["label"] != predictions["predicted"]
    return wrong


def _text(tokens_NT: np.ndarray, places: Sequence[Sequence[SourceSpan]], item: int, of_row: int, decode: Decode) -> str:
    """Return the beginning of the text of an item or, where it is one of the `of_row` tokens of a row, those around
    it."""
    row, at = divmod(item, of_row)
    length = sum(place.end - place.first for place in places[row])
    ids = tokens_NT[row, :length].tolist()
    if of_row == 1:
        return decode(ids[:BEGINNING]).strip()
    before, after = decode(ids[max(0, at - AROUND) : at]), decode(ids[at + 1 : at + 1 + AROUND])
    return f"{before.strip()} [{decode(ids[at : at + 1]).strip()}] {after.strip()}".strip()


def _named(array: np.ndarray, classes: Sequence[str]) -> list[Any]:
    """Return the items as a table has them: classes and sets of classes by name, all else as numbers."""
    integers = np.issubdtype(array.dtype, np.integer)
    if classes and integers and array.ndim > 1:
        return [[name for name, has in zip(classes, item, strict=True) if has > 0] for item in array.tolist()]
    if classes and integers:
        return [classes[number] if number >= 0 else None for number in array.tolist()]
    return list(array.tolist())


def write_results(
    run_directory: Path,
    name: str,
    step: int,
    metrics: Mapping[str, float],
    table: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] = {},
) -> Path:
    """Return the JSON file, after writing the metrics of a set at a step to it and any table of predictions beside it.

    `details` says how the metrics were obtained, as JSON.

    Raises:
        TrainkitError: the files cannot be written.
    """
    directory, file_name = run_directory / DIRECTORY, f"{_file_name_of(name)}-{step}"
    if table is not None:
        import pyarrow
        from pyarrow import parquet

        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table(dict(table)), buffer)
        with write_file(directory / f"{file_name}.parquet") as file:
            file.write(buffer.getvalue())
    path = directory / f"{file_name}.json"
    record: dict[str, Any] = {
        "set": name,
        "step": step,
        "metrics": {key: as_logged(value) for key, value in metrics.items()},
    }
    record |= details
    with write_file(path) as file:
        file.write(redact(json.dumps(record, indent=1)).encode() + b"\n")
    return path


def _file_name_of(name: str) -> str:
    """Return the name of a set as part of a file name, so that no two sets share a file: `en/a` becomes `en%2Fa`."""
    escaped = re.sub(r"[^\w.@-]", lambda match: quote(match[0], safe=""), name)
    # file systems take 255 bytes
    return escaped if len(escaped.encode()) <= 200 else f"{escaped[-40:]}-{of_value(name)[:16]}"


class ResultWriter(Protocol):
    """Keeps the results of evaluations as files."""

    def __call__(self, name: str, step: int, metrics: Mapping[str, float], predictions: PredictionTable, /) -> None:
        """Keep the metrics and the predictions of a set after a step."""


def result_writer(
    directory: Path, recipe: Recipe, cache: Cache, *, average: bool, training_set: str | None = None
) -> ResultWriter:
    """Return a function that writes the metrics and predictions of evaluations to a run's `results/`.

    Args:
        average: whether they are of the averages of the parameters.
        training_set: the name under which the training set is evaluated; None if it is not.
    """
    classes = recipe.task.class_names(recipe.data)
    codec = cache.tokenizer
    hidden = {*codec.special_tokens.values()} - {codec.unknown} if codec else set()

    def decode(ids: Sequence[int]) -> str:
        return cache.text_tokenizer.decode([token for token in ids if token not in hidden])

    def write(name: str, step: int, metrics: Any, predictions: PredictionTable) -> None:
        if not hosts.is_first():
            return
        set_name = "train" if name == training_set else name

        def origin(place: SourceSpan) -> RowOrigin:
            unit = cache.units[set_name][place.section.source][place.section.unit]
            return RowOrigin(unit.files[place.file].path, place.index)

        kept = recipe.evaluate.predictions and name not in recipe.evaluate.tags  # a tag's are those of its sets
        table = predictions.columns(origin, classes, decode) if kept else None
        write_results(directory, name, step, metrics, table, {"average": True} if average else {})

    return write
