"""Labels from a row to a batch: a class of a document, several classes at once, numbers, or a class of each token.

Each kind is a class here, which the spec of a document names as its `label_kind`; nothing else knows a kind by name.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from trainkit.data.documents.columns import number_of
from trainkit.data.documents.pieces import Label
from trainkit.data.problems import Problem, kind_of, list_names, missing_key
from trainkit.recipe.sections.document_spec import DocumentSpec
from trainkit.recipe.spec import import_named

#: One past the highest label that a shard can hold.
_LABELS = 1 << 31
_USUAL = ("label", "labels", "class", "category", "score")
#: Which `label_type` of a document has values of a type.
_TYPES = {float: "number", list: "classes", tuple: "classes"}


def no_label(dtype: np.dtype) -> float:
    """Return what a batch holds instead of a missing label: -1 among whole numbers, NaN among others."""
    return math.nan if np.issubdtype(dtype, np.floating) else -1


def labels_of(document: DocumentSpec | None) -> Labels | None:
    """Return the labels of a type of document; None if it has none."""
    if document is None or document.label_kind is None:
        return None
    return _make(document)


@lru_cache
def _make(document: DocumentSpec) -> Labels:
    assert document.label_kind is not None
    labels: Labels = import_named(document.label_kind)(document)
    return labels


class Labels(ABC):
    """The labels of one type of document."""

    per: ClassVar[Literal["record", "document", "token"]]
    """Where a shard has them: in the records of documents, or in an array with an entry for each document or token."""
    dtype: ClassVar[np.dtype]
    """In a batch."""
    stored: ClassVar[np.dtype]
    """In an array of a shard."""
    noun: ClassVar[str] = "class"
    """What a label is one of, or is."""
    predicted: ClassVar[bool] = True
    """Whether the model learns to predict the labels, so that labels that are all the same teach nothing."""
    named: ClassVar[bool] = True
    """Whether people see the label beside what it is of, or only that it is learned."""

    def __init__(self, document: Any) -> None:
        self.document = document

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one label: () for one number, (W,) for several."""
        return ()

    @abstractmethod
    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return the label of a row, or what is wrong with it."""

    def as_json(self, value: Any) -> Any:
        """Return a label of a batch as JSON for people; None if there is no label."""
        return int(value) if value >= 0 else None

    def outside(self, values_N: np.ndarray, classes: int) -> np.ndarray:
        """Return which of some stored labels do not fit this many classes, bool (N,)."""
        return np.asarray(values_N >= classes)


class ClassLabels(Labels):
    """One class of a document: an image's, or a text's."""

    per = "record"
    dtype = np.dtype(np.int32)

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return the number of a row's class, counted from 0; -1 if the document has no labels.

        A label is a whole number, one of `classes`, or a boolean: false is 0 and true is 1, as in data sets of yes and
        no. A number in quotes is not accepted, nor is 1.0.
        """
        key = self.document.label
        if not key:
            return -1
        if key not in row:
            return missing_key(key, row, "document.label", usual=_USUAL)
        found = class_number(f"'{key}'", row[key], self.document.classes)
        other = _TYPES.get(type(row[key]))
        if isinstance(found, tuple) and other and hasattr(self.document, "label_type"):
            return found[0], f'document.label_type is "class": for such labels write "{other}"'
        return found

    def as_json(self, value: Any) -> Any:
        number, names = super().as_json(value), self.document.label_names
        return names[number] if number is not None and number < len(names) else number


class TokenLabels(Labels):
    """A class of each token; the module of the document makes spans with labels."""

    per = "token"
    dtype = np.dtype(np.int32)
    stored = np.dtype("<i2")

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        return -1


class NumberLabels(Labels):
    """A number of a document, or several."""

    per = "document"
    dtype = np.dtype(np.float32)
    stored = np.dtype("<f4")
    noun = "value"

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.document.numbers_in_label
        return (width,) if width > 1 else ()

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return the numbers of a row. A number may be text, as in CSV."""
        found = _entries(self.document.label, row, self.document.numbers_in_label, "numbers")
        if isinstance(found, tuple):
            return found
        numbers: list[float] = []
        for name, value in found.items():
            number = number_of(value)
            if number is None:
                hint = 'document.label_type is "number"; for names of classes it is "class"'
                return f"{name} is {_show(value)}, not a number", hint if isinstance(value, str) else ""
            if not abs(number) <= float(np.finfo(np.float32).max):
                return f"{name} is {_show(value)}, which is not finite as float32", "leave out rows without a label"
            numbers.append(number)
        return np.array(numbers, self.stored)

    def as_json(self, value: Any) -> Any:
        found = np.asarray(value, np.float32)
        # the shortest decimals that are these float32 numbers
        numbers = [float(str(number)) for number in found.reshape(-1)]
        return (numbers if found.ndim else numbers[0]) if np.isfinite(found).all() else None

    def outside(self, values_N: np.ndarray, classes: int) -> np.ndarray:
        return np.zeros(len(values_N), bool)


class MarginLabels(NumberLabels):
    """By how much one of two answers is better, in the key `margin`."""

    predicted = False

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return the margin of a row. It may be text, as in CSV."""
        key = self.document.margin
        if key not in row:
            return missing_key(key, row, "document.margin", usual=("margin", "score_difference"))
        number = number_of(row[key])
        if number is None or not abs(number) <= float(np.finfo(np.float32).max):
            return (
                f"'{key}' is {_show(row[key])}, not a finite number",
                "it says by how much the chosen answer is better",
            )
        return np.array([number], self.stored)


class ClassSetLabels(Labels):
    """Several classes of a document at once, or none of them: 1 for each class that it has, and 0 for the others."""

    per = "document"
    dtype = np.dtype(np.int32)
    stored = np.dtype("<i1")
    noun = "set of classes"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.document.numbers_in_label,)

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return 1 or 0 for each class, of a list of classes."""
        key, classes = self.document.label, self.document.label_names
        if key not in row:
            return missing_key(key, row, "document.label", usual=_USUAL)
        if not isinstance(row[key], list | tuple):
            hint = 'a row lists its classes: ["a", "b"]; for one class, document.label_type is "class"'
            return f"'{key}' is {_show(row[key])}, not a list", hint
        numbers = set()
        for place, value in enumerate(row[key]):
            number = class_number(f"'{key}[{place}]'", value, classes)
            if isinstance(number, tuple):
                return number
            numbers.add(number)
        return np.isin(np.arange(len(classes)), list(numbers)).astype(self.stored)

    def as_json(self, value: Any) -> Any:
        names = zip(self.document.label_names, value, strict=True)
        return [name for name, has in names if has] if np.min(value) >= 0 else None

    def outside(self, values_N: np.ndarray, classes: int) -> np.ndarray:
        return np.zeros(len(values_N), bool)


class FlagLabels(ClassSetLabels):
    """The same, of rows with 0 or 1 for each class."""

    def of_row(self, row: Mapping[str, Any]) -> Label | Problem:
        """Return 1 or 0 for each class, of a list with an entry for each, or of a key for each."""
        found = _entries(self.document.label, row, self.document.numbers_in_label, "classes")
        if isinstance(found, tuple):
            return found
        for name, value in found.items():
            if not isinstance(value, int | float) or value not in (0, 1):
                return f"{name} is {_show(value)}, neither 0 nor 1", "write 1 for each class of a text, 0 for others"
        return np.array(list(found.values()), self.stored)


def _entries(label: str | tuple[str, ...], row: Mapping[str, Any], width: int, what: str) -> dict[str, Any] | Problem:
    """Return the values of a label, from several keys or from the list in one key, by the names that errors use."""
    for key in (label,) if isinstance(label, str) else label:
        if key not in row:
            return missing_key(key, row, "document.label", usual=_USUAL)
    if not isinstance(label, str):
        return {f"'{key}'": row[key] for key in label}
    found = row[label]
    if width == 1 and not isinstance(found, list | tuple):
        return {f"'{label}'": found}
    if not isinstance(found, list | tuple) or len(found) != width:
        length = f"a list of {len(found)}" if isinstance(found, list | tuple) else _show(found)
        wanted = "a number" if (width, what) == (1, "numbers") else f"a list of {width} {what}"
        setting = "document.label_width" if what == "numbers" else "document.classes"
        return f"'{label}' is {length}, not {wanted}", f"{setting} says how many a label has"
    return {f"'{label}[{place}]'": value for place, value in enumerate(found)}


def class_number(name: str, found: Any, classes: Sequence[str]) -> int | Problem:
    """Return the number of the class that a value means, see `ClassLabels`; errors call the value `name`."""
    if isinstance(found, str):
        return _by_name(name, classes, found)
    if not isinstance(found, int):
        allowed = "neither a whole number nor one of the classes" if classes else "not a whole number"
        return f"{name} is {_show(found)}, {allowed}", ""
    if found < 0:
        return (
            f"{name} is {found}; labels count from 0",
            "many data sets write -1 where there is no label: use a split that has labels, or leave these rows out",
        )
    if classes and found >= len(classes):
        return (
            f"{name} is {found}, but there are {len(classes)} classes: {list_names(classes)}",
            f"labels are numbers from 0 to {len(classes) - 1}, or names; or add to document.classes",
        )
    if found >= _LABELS:
        return f"{name} is {found}; labels are less than {_LABELS}", ""
    return int(found)


def _by_name(name: str, classes: Sequence[str], found: str) -> int | Problem:
    if found in classes:
        return classes.index(found)
    if not classes:
        return (
            f"{name} is '{found}', not a number",
            f'name the labels in the order of their numbers: classes = ["{found}", …]',
        )
    near = difflib.get_close_matches(found, classes, n=1, cutoff=0.6) or [
        each for each in classes if each.casefold() == found.strip().casefold()
    ]
    return (
        f"{name} is '{found}', which is none of the classes: {list_names(classes)}",
        f"did you mean '{near[0]}'? Names are compared letter by letter"
        if near
        else "add it to document.classes, or leave these rows out",
    )


def _show(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value[:40]}'"
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else kind_of(value)
