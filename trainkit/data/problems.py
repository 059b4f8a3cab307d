"""What is wrong with a row or with all of the data, in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: What is wrong with a row, and how to mend it.
Problem = tuple[str, str]

#: Of what text cannot be written as UTF-8: JSON may hold it.
NO_TEXT = "has half of a surrogate pair, which is no text"


@dataclass(frozen=True)
class DataProblem:
    """A problem that a check found; an error means that training would learn nothing or break.

    `message` has counts and an example.
    """

    level: Literal["error", "warning", "info"]
    message: str


def missing_key(key: str, found: Iterable[str], setting: str, *, usual: Iterable[str] = ()) -> Problem:
    """Return that a row or a table has no such key.

    Args:
        setting: where the recipe names the key, such as `document.prompt`.
        usual: other common names of the key.
    """
    names = list(found)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5) or [name for name in usual if name in names]
    guess = f'did you mean "{near[0]}"? ' if near else ""
    return f"has no '{key}'; found: {list_names(names)}", f"{guess}{setting} names it"


def kind_of(value: Any) -> str:
    """Return the kind of a value of a row, such as "a string"."""
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", type(None): "null", bytes: "bytes"}
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), f"of type {type(value).__name__}")


def list_names(found: Iterable[str]) -> str:
    """Return the first few names in quotes."""
    names = list(found)
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
