"""Labelled text as pieces: one text, or a pair of which the second is marked, with the number of its class."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainkit.data.documents.pieces import Piece, RowContext, as_document, text_pieces
from trainkit.data.problems import Problem, kind_of, list_names, missing_key
from trainkit.recipe.sections.document import Labelled

#: One past the highest label that a shard can hold.
_LABELS = 1 << 31


def make(document: Labelled, row: Mapping[str, Any], index: int, context: RowContext) -> list[Piece] | Problem:
    """See `make_labelled`."""
    return make_labelled(document, row, index)


def make_labelled(document: Labelled, row: Mapping[str, Any], index: int) -> list[Piece] | Problem:
    """The pieces of a row's text or two texts; the first has the label.

    A pair is one document: the second text's pieces have `second`, and none of them is its first. An empty text has no
    piece, unless there is nothing else. Raises UnicodeEncodeError where one is no text.
    """
    texts: list[str] = []
    for key in document.texts:
        if key not in row:
            return missing_key(key, row, "document.texts", usual=("text", "sentence", "content"))
        found = row[key]
        if not isinstance(found, str):
            return f"'{key}' is {kind_of(found)}, not a string", "document.texts names the keys that hold text"
        texts.append(found)
    label = find_label(document.label, document.classes, row)
    if isinstance(label, tuple):
        return label
    pieces = [
        replace(piece, second=number == 1)
        for number, text in enumerate(texts)
        if text
        for piece in text_pieces(index, [text])
    ]
    pieces = as_document(pieces or [Piece(index=index)])
    return [replace(pieces[0], label=label), *pieces[1:]]


def find_label(key: str, classes: Sequence[str], row: Mapping[str, Any]) -> int | Problem:
    """The number of a row's class, from 0 on.

    A label is a whole number, one of `classes`, or a boolean: false is 0 and true is 1, as data sets of yes and no
    have them. A number in quotes is none, and neither is 1.0.
    """
    if key not in row:
        return missing_key(key, row, "document.label", usual=("label", "labels", "class", "category"))
    return label_number(f"'{key}'", row[key], classes)


def label_number(name: str, found: Any, classes: Sequence[str]) -> int | Problem:
    """Return the number of the class that a value stands for, see `find_label`; `name` is what errors call it."""
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
    return repr(value) if isinstance(value, float) else kind_of(value)
