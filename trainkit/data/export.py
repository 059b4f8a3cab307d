"""Writing a cache as Parquet, which `[[data.train]] type = "tokens"` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainkit.data.cache.shards import LEARNED, SECOND
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.labels import Labels, labels_of
from trainkit.data.show import place_of
from trainkit.errors import TrainkitError
from trainkit.recipe.sections.data import Data
from trainkit.recipe.sections.source import document_of


def export(cache: Cache, data: Data, directory: Path) -> list[Path]:
    """Write every set of a cache as `SET-00000.parquet` …, a file a shard and a row a document; return the files.

    Columns: `tokens` (list of uint16 or uint32, the end-of-text token included), `learned` (list of bool, where some
    tokens are not targets), `source` (file and line). Labelled texts also have `second` (list of bool: whether a token
    is in the second text of a pair) and `label`: the number of a class (int32, -1 without a label), a float32 or a list
    of them, or a list of 0 and 1 for each class.

    Raises:
        TrainkitError: the directory cannot be written, or holds such files already; a document of `data` is not text,
            or has several sequences.
    """
    import pyarrow
    from pyarrow import parquet

    check_exportable(data)
    document = document_of(data.train[0])
    labels = labels_of(document)
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, stream in {"train": cache.train, **cache.validation}.items():
            for number, table in enumerate(_tables(cache, name, stream, labels)):
                path = directory / f"{name}-{number:05d}.parquet"
                if path.exists():
                    raise TrainkitError("a file of this name exists", where=str(path), hint="name an empty directory")
                parquet.write_table(pyarrow.table(table), path)
                written.append(path)
    except OSError as error:
        raise TrainkitError(f"cannot write it: {error.strerror or error}", where=str(directory)) from error
    return written


def check_exportable(data: Data) -> None:
    """Raise TrainkitError if a document cannot be written as one list of token ids."""
    for name, sources in (("train", data.train), ("validation", data.validation)):
        for number, source in enumerate(sources):
            document = document_of(source)
            if document is None or (document.is_text and document.sequences == 1):
                continue
            why = (
                "its two sequences would become one text"
                if document.is_text
                else f"it is {document.stored_as}, not tokens"
            )
            raise TrainkitError(
                f'--export cannot write documents of type "{document.type}" as token ids: {why}',
                where=f"data.{name}.{number}.document",
                hint="omit --export, or export a recipe whose documents are one text each",
            )


def _tables(cache: Cache, name: str, stream: Stream, labels: Labels | None) -> Iterator[dict[str, Any]]:
    """Yield the columns of each section's documents. A document that continues in the next section is written there."""
    import pyarrow

    of_tokens = labels is not None and labels.per == "token"
    of_documents = labels is not None and not of_tokens
    waiting: list[np.ndarray] = []
    waiting_marks: list[np.ndarray] = []
    for number, section in enumerate(stream.sections):
        arrays = stream.arrays(number)
        tokens, documents = arrays.tokens[: section.tokens], section.entries
        marks = np.full(len(tokens), LEARNED, np.uint8) if arrays.marks is None else arrays.marks[: section.tokens]
        ends = arrays.ends[:documents].astype(np.int64)
        if not documents:
            waiting, waiting_marks = [*waiting, tokens], [*waiting_marks, marks]
            continue
        before = sum(map(len, waiting))
        last = int(ends[-1])
        offsets = np.concatenate([[0], ends + before]).astype(np.int64)
        columns = {"tokens": np.concatenate([*waiting, tokens[:last]])}
        marks_of = np.concatenate([*waiting_marks, marks[:last]])
        if stream.marked:
            columns["learned"] = marks_of & LEARNED > 0
        if of_documents:
            columns["second"] = marks_of & SECOND > 0
        if of_tokens:  # such a document never continues
            columns["labels"] = arrays.label_values[:last]
        waiting, waiting_marks = ([tokens[last:]], [marks[last:]]) if last < len(tokens) else ([], [])
        table: dict[str, Any] = {
            column: pyarrow.LargeListArray.from_arrays(offsets, pyarrow.array(values))
            for column, values in columns.items()
        }
        records = arrays.documents[:documents]
        if of_documents:
            found = arrays.label_values[:documents]
            table["label"] = pyarrow.array(found if found.ndim == 1 else list(found))
        table["source"] = [
            place_of(cache, name, section.source, section.unit, int(file), int(index))
            for file, index in zip(records["file"].tolist(), records["index"].tolist(), strict=True)
        ]
        yield table
