"""The values of a recipe by their keys, as TOML writes them, and how two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainkit.recipe.recipe import Recipe
from trainkit.recipe.toml.positions import Key, dotted


@dataclass(frozen=True)
class Difference:
    """One key in which two recipes differ; None where one of them has no such key."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {_said(self.old)} -> {_said(self.new)}"


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """What differs, key by key, in the order of the recipe."""
    was, now = flat(old), flat(new)
    keys = [*was, *(key for key in now if key not in was)]
    return [Difference(dotted(k), was.get(k), now.get(k)) for k in keys if was.get(k) != now.get(k)]


def flat(recipe: Recipe) -> dict[Key, Any]:
    """Every value by its key. Lists of tables are walked into, other lists are values."""
    return dict(_leaves(recipe.model_dump(by_alias=True), ()))


def toml_value(value: Any) -> str:
    """A value as it is written in TOML on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's too, but JSON leaves DEL as it is
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            inner = ", ".join(f"{key_name(k)} = {toml_value(v)}" for k, v in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case _:
            # int, float ("1e-08", "inf", "nan") and TOML's dates and times read back as they are printed
            return str(value)


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if is_table(value):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    elif is_tables(value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key, index))
    else:
        yield key, value


def is_table(value: Any) -> bool:
    """Return whether a value is written as a table."""
    return isinstance(value, dict)


def is_tables(value: Any) -> bool:
    """Return whether a value is written as a list of tables."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, dict) for v in value)


def key_name(name: str) -> str:
    """Return a key as it is written in TOML, in quotes where it needs them."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else toml_value(name)


def _said(value: Any) -> str:
    return "not given" if value is None else toml_value(value)
