"""Labelled text as pieces: one text, or a pair of which the second is marked, with the number of its class."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainkit.data.pieces import Piece, text_pieces
from trainkit.recipe.document import Labelled

#: One past the highest label that a shard can hold.
_LABELS = 1 << 31


def make_labelled(document: Labelled, row: Mapping[str, Any], index: int) -> list[Piece] | tuple[str, str]:
    """The pieces of a row's text or two texts; the first has the label. Else (problem, hint).

    A pair is one document: the second text's pieces have `second`, and none of them is its first. An empty text has no
    piece, unless there is nothing else.
    """
    texts: list[str] = []
    for key in document.texts:
        if key not in row:
            return missing_key(key, row, "texts", guesses=("text", "sentence", "content"))
        found = row[key]
        if not isinstance(found, str):
            return f"'{key}' is {called(found)}, not a string", "document.texts names the keys that hold text"
        if not is_text(found):
            return f"'{key}' has half of a surrogate pair, which is no text", ""
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


def find_label(key: str, classes: Sequence[str], row: Mapping[str, Any]) -> int | tuple[str, str]:
    """The number of a row's class, from 0 on; else (problem, hint).

    A label is a whole number, one of `classes`, or a boolean: false is 0 and true is 1, as data sets of yes and no
    have them. A number in quotes is none, and neither is 1.0.
    """
    if key not in row:
        return missing_key(key, row, "label", guesses=("label", "labels", "class", "category"))
    found = row[key]
    if isinstance(found, str):
        return _by_name(key, classes, found)
    if not isinstance(found, int):
        allowed = "neither a whole number nor one of the classes" if classes else "not a whole number"
        return f"'{key}' is {_shown(found)}, {allowed}", ""
    if found < 0:
        return (
            f"'{key}' is {found}; labels count from 0",
            "many data sets write -1 where there is no label: use a split that has labels, or leave these rows out",
        )
    if classes and found >= len(classes):
        return (
            f"'{key}' is {found}, but there are {len(classes)} classes: {_listed(classes)}",
            f"labels are numbers from 0 to {len(classes) - 1}, or names; or add to document.classes",
        )
    if found >= _LABELS:
        return f"'{key}' is {found}; labels are less than {_LABELS}", ""
    return int(found)


def _by_name(key: str, classes: Sequence[str], found: str) -> int | tuple[str, str]:
    if found in classes:
        return classes.index(found)
    if not classes:
        return (
            f"'{key}' is '{found}', not a number",
            f'name the labels in the order of their numbers: classes = ["{found}", …]',
        )
    near = difflib.get_close_matches(found, classes, n=1, cutoff=0.5) or [
        name for name in classes if name.casefold() == found.strip().casefold()
    ]
    return (
        f"'{key}' is '{found}', which is none of the classes: {_listed(classes)}",
        f"did you mean '{near[0]}'? Names are compared letter by letter"
        if near
        else "add it to document.classes, or leave these rows out",
    )


def missing_key(key: str, row: Mapping[str, Any], setting: str, *, guesses: Iterable[str] = ()) -> tuple[str, str]:
    """(problem, hint) for a row without a key that the document's `setting` names; `guesses` are usual names of it."""
    near = difflib.get_close_matches(key, list(row), n=1, cutoff=0.5) or [name for name in guesses if name in row]
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"has no '{key}'; found: {_listed(list(row))}", f"{hint}document.{setting} says which key it is"


def called(value: Any) -> str:
    """What a value of a row is, in a person's words."""
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null", bytes: "bytes"}
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), f"of type {type(value).__name__}")


def is_text(text: str) -> bool:
    """Whether UTF-8 can write it: JSON may hold half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_document(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that are one document together, in this order."""
    return [
        replace(piece, first=place == 0, last=place == len(pieces) - 1, label=-1) for place, piece in enumerate(pieces)
    ]


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, float) else called(value)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
