"""Checks of labels before the first step: outside the classes, all the same, and classes that no document has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainkit.data.cache.arrays import FileArrays
from trainkit.data.cache.section import Section
from trainkit.data.cache.token_cache import Cache
from trainkit.data.documents.labels import Labels, labels_of
from trainkit.data.problems import DataProblem, list_names
from trainkit.data.show import place_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import document_of


def outside_classes(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield, for each set, the first label that is not among the task's classes."""
    width, labels = recipe.model.head.width, labels_of(document_of(recipe.data.train[0]))
    if not width or labels is None:
        return
    for name, stream in [("train", cache.train), *cache.validation.items()]:
        for number, section in enumerate(stream.sections):
            arrays = stream.file_arrays(number)
            documents, values = arrays.documents[: section.entries], _label_values(arrays, section, labels)
            outside = np.flatnonzero(labels.outside(values, width))
            if not len(outside):
                continue
            at = int(outside[0])
            row = int(np.searchsorted(arrays.ends, at, side="right")) if labels.per == "token" else at
            place = place_of(
                cache, name, section.source, section.unit, int(documents["file"][row]), int(documents["index"][row])
            )
            yield DataProblem(
                "error", f"{name}: the label {values[at]} at {place} is none of the {width} classes, 0 to {width - 1}"
            )
            break


def one_class(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield an error if every label of the training data is the same."""
    document = document_of(recipe.data.train[0])
    labels = labels_of(document)
    if document is None or labels is None or not labels.predicted:
        return
    seen: np.ndarray | None = None
    for number, section in enumerate(cache.train.sections):
        values = _label_values(cache.train.file_arrays(number), section, labels)
        found = np.unique(values if labels.dtype.kind == "f" or values.ndim > 1 else values[values >= 0], axis=0)
        seen = found if seen is None else np.unique(np.concatenate([seen, found]), axis=0)
        if len(seen) > 1:
            return
    if seen is not None and len(seen):
        label, classes = labels.as_json(seen[0]), document.label_names
        name = f"{label} ({classes[label]})" if isinstance(label, int) and label < len(classes) else str(label)
        yield DataProblem("error", f"train: every label is {name}: with one {labels.noun} there is nothing to learn")


def absent_classes(cache: Cache, recipe: Recipe) -> Iterator[DataProblem]:
    """Yield a warning if no document of the training data has some of the classes of the task."""
    labels, names = labels_of(document_of(recipe.data.train[0])), recipe.task.class_names(recipe.data)
    if labels is None or labels.dtype.kind == "f" or not names:
        return
    seen = np.zeros(len(names), bool)
    for number, section in enumerate(cache.train.sections):
        values = _label_values(cache.train.file_arrays(number), section, labels)
        seen |= (values > 0).any(0) if values.ndim > 1 else np.isin(np.arange(len(names)), values)
    absent = [name for name, is_seen in zip(names, seen, strict=True) if not is_seen]
    if absent:
        which = "the class" if len(absent) == 1 else f"{len(absent)} of the {len(names)} classes,"
        message = f"train: no document has {which} {list_names(absent)}: the model would learn never to predict it"
        yield DataProblem("warning", message if len(absent) == 1 else message.removesuffix("it") + "them")


def _label_values(arrays: FileArrays, section: Section, labels: Labels) -> np.ndarray:
    """Return the labels of the documents, or of the tokens, of a section."""
    return arrays.label_values[: section.tokens if labels.per == "token" else section.entries]
