"""Datasets of the Hugging Face hub, and directories that hold one. `datasets` itself is imported only to read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainkit.data.documents.pieces import Refuse, Span
from trainkit.data.documents.templates import missing_column, needed_keys
from trainkit.data.sources.patterns import Stat, stat_of_directory
from trainkit.data.sources.source_file import Rows, SourceFile, SourceRow
from trainkit.data.storage import write_json
from trainkit.errors import TrainkitError
from trainkit.files import read_json
from trainkit.recipe.sections.source import HuggingFace

_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Seconds in which the hub must answer.
_PATIENCE = 10
_BATCH = 256
_LOCK = threading.Lock()
_ELSEWHERE = 'files on this machine need no hub: path = "DIRECTORY/*.parquet" (or .jsonl), or id = "DIRECTORY"'


def pin(source: HuggingFace, cache: Path) -> tuple[HuggingFace, Stat, str | None]:
    """Return the dataset at the revision that is read, and the `stat` and `identity` of its `SourceFile`.

    The identity of a dataset of the hub is the commit of the revision when the cache first saw it, remembered in
    `CACHE/hub`, so that later runs use the same commit. A directory has no identity: its files are read instead.

    Raises:
        TrainkitError: the dataset does not exist, or the hub cannot be reached.
    """
    if _directory(source):
        try:
            return source.model_copy(update={"revision": None}), stat_of_directory(source.id), None
        except OSError as error:
            raise TrainkitError(f"cannot read it: {error.strerror or error}", where=str(error.filename)) from error
    commit = _commit(source, cache)
    pinned = source.model_copy(update={"revision": commit})
    return pinned, (0, 0, 0, 0), json.dumps([f"{source.id} {commit}", source.config, source.split])


def read_rows(file: SourceFile, refuse: Refuse, span: Span | None = None) -> Rows:
    """Yield each row of a dataset, or of a span of its rows; images and audio are not decoded.

    Raises:
        TrainkitError: it cannot be loaded.
    """
    assert file.reading.hub is not None
    dataset = _of(file)
    if dataset.column_names is not None and (needed := needed_keys(file.reading)) is not None:
        if problem := missing_column(file.reading, dataset.column_names):
            return refuse(problem)
        dataset = dataset.select_columns([name for name in needed if name in dataset.column_names])
    first = span.start if span else 0
    read = _stream_rows(dataset) if file.reading.hub.streaming else _rows_of(dataset, first, span.end if span else None)
    index = first
    try:
        for index, row in enumerate(read, first):
            yield SourceRow(index, f":row {index}", row)
    # the hub's libraries raise what each of the formats and the network do
    except Exception as error:
        raise TrainkitError(
            f"cannot be read: {type(error).__name__}: {error}", where=f"{file.path}:row {index}"
        ) from error


def row_spans(file: SourceFile, size: int) -> tuple[Span, ...]:
    """Return spans of consecutive rows of about `size` bytes; none if rows are streamed. Raises TrainkitError."""
    assert file.reading.hub is not None
    if file.reading.hub.streaming:
        return ()
    dataset = _of(file)
    total, count = dataset.data.nbytes, len(dataset)
    if total <= size or not count:
        return ()
    step = max(1, size * count // total)
    return tuple(Span(start, min(start + step, count), start, "") for start in range(0, count, step))


def _directory(source: HuggingFace) -> Path | None:
    path = Path(os.path.expanduser(source.id))
    if path.is_dir():
        return path.absolute()
    if path.is_absolute() or source.id.startswith((".", "~")) or source.id.count("/") > 1:
        raise TrainkitError("no such directory", where=source.id, hint='a dataset of the hub is called "owner/name"')
    return None


def _commit(source: HuggingFace, cache: Path) -> str:
    if source.revision and _COMMIT.fullmatch(source.revision):
        return source.revision
    key = hashlib.blake2b(json.dumps([source.id, source.revision]).encode(), digest_size=16).hexdigest()
    memory = cache / "hub" / f"{key}.json"
    try:
        return str(read_json(memory)["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    commit = _ask(source)
    write_json(memory, {"id": source.id, "revision": source.revision, "commit": commit})
    return commit


def _ask(source: HuggingFace) -> str:
    from huggingface_hub import HfApi, errors

    where = f"dataset {source.id} of the Hugging Face hub"
    try:
        return str(HfApi().dataset_info(source.id, revision=source.revision, timeout=_PATIENCE).sha)
    except errors.RevisionNotFoundError as error:
        raise TrainkitError(f"has no revision '{source.revision}'", where=where) from error
    except errors.GatedRepoError as error:
        raise TrainkitError(
            "is gated: its owner must grant you access", where=where, hint="ask on its page, then run: hf auth login"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        hint = f"check the name; if it is private, run: hf auth login; {_ELSEWHERE}"
        raise TrainkitError("does not exist, or is private", where=where, hint=hint) from error
    # network failures are errors of whichever HTTP library the hub's client uses
    except Exception as error:
        raise TrainkitError(f"the hub cannot be reached: {error}", where=where, hint=_ELSEWHERE) from error


def _of(file: SourceFile) -> Any:
    assert file.reading.hub is not None
    with _LOCK:
        return _load(file.reading.hub, file.identity or file.stat)


@functools.lru_cache(maxsize=4)
def _load(spec: HuggingFace, state: str | Stat) -> Any:
    """Return the dataset of a specification; `state` distinguishes the states of a directory."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    directory = _directory(spec)
    try:
        if directory and _is_saved(directory):
            dataset = _split_of(datasets, datasets.load_from_disk(str(directory)), spec.split)
            dataset = dataset.to_iterable_dataset() if spec.streaming else dataset
        else:
            dataset = datasets.load_dataset(
                str(directory or spec.id),
                name=spec.config,
                split=spec.split,
                revision=spec.revision,
                streaming=spec.streaming,
                cache_dir=_cache_of(datasets, state) if directory else None,
            )
        return _without_decoding(datasets, dataset)
    except TrainkitError:
        raise
    # each of its formats has errors of its own
    except Exception as error:
        raise TrainkitError(
            f"cannot be loaded: {type(error).__name__}: {error}",
            where=f"dataset {spec.id}, split {spec.split}",
            hint="check id, config and split; datasets with a loading script are not supported"
            if not directory
            else "",
        ) from error


def _cache_of(datasets: Any, state: str | Stat) -> Path:
    """Return where `datasets` keeps its copy of a directory in a state. By itself it compares only times of
    modification, and would read an old copy of a file that was replaced by one of the same time."""
    return Path(datasets.config.HF_DATASETS_CACHE) / hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()


def _is_saved(directory: Path) -> bool:
    """Return whether `save_to_disk` wrote the directory."""
    return (directory / "dataset_dict.json").is_file() or (directory / "state.json").is_file()


def _split_of(datasets: Any, saved: Any, split: str) -> Any:
    """Return a split, also sliced, of a saved dataset; a single dataset is the split that it was saved as, or any."""
    name = re.split(r"[\[+]", split, maxsplit=1)[0]
    if isinstance(saved, datasets.DatasetDict):
        if name not in saved:
            raise TrainkitError(f"has no split '{name}'; found: {', '.join(saved)}", where="data.train.split")
        saved = saved[name]
    elif saved.split is not None and str(saved.split) != name:
        raise TrainkitError(f"has no split '{name}', it is the split '{saved.split}'", where="data.train.split")
    if name == split:
        return saved
    parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(saved)})
    return datasets.concatenate_datasets([saved.select(range(part.from_, part.to)) for part in parts])


def _without_decoding(datasets: Any, dataset: Any) -> Any:
    """Return the dataset with images and sounds as the stored bytes."""
    for name, feature in (dataset.features or {}).items():
        if isinstance(feature, datasets.Image | datasets.Audio) and feature.decode:
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    return dataset


def _rows_of(dataset: Any, first: int, end: int | None) -> Iterator[dict[str, Any]]:
    for start in range(first, len(dataset) if end is None else end, _BATCH):
        stop = min(start + _BATCH, len(dataset) if end is None else end)
        yield from dataset.select(range(start, stop)).with_format(None).to_list()


def _stream_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    yield from dataset
