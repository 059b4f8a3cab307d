"""Values in nested tables and lists, by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from trainkit.recipe.toml.positions import Key

#: In place of a value that is missing.
NOTHING = object()


def get(data: Any, key: Key, default: Any = None) -> Any:
    """Return the value at a key, or `default` if there is none."""
    for part in key:
        is_there = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if not is_there:
            return default
        data = data[part]
    return data


def named_values(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name in a table and in the tables inside it, with its value, from the top to the bottom."""
    for name, inner in data.items() if isinstance(data, dict) else ():
        yield name, inner
        yield from named_values(inner)


def put(data: Any, key: Key, value: Any) -> None:
    """Replace the value at a key, or add it to the table or to the end of the list around it."""
    target = get(data, key[:-1])
    if isinstance(target, list) and key[-1] == len(target):
        target.append(value)
    else:
        target[key[-1]] = value


def put_if_free(data: dict[str, Any], key: Key, value: Any) -> bool:
    """Put a value at a key, with the tables around it, unless that place is taken; return whether it was free."""
    if any(isinstance(part, int) for part in key) and not isinstance(get(data, key[:-1]), dict):
        return False  # there is no such entry of a list
    table: Any = data
    for part in key[:-1]:
        table = table.setdefault(part, {}) if isinstance(table, dict) else get(table, (part,))
    if not isinstance(table, dict) or key[-1] in table:
        return False
    table[key[-1]] = value
    return True


def is_table(value: Any) -> bool:
    """Return whether a value is a table or a list of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def errors_by_key(error: ValidationError, data: Any) -> list[tuple[Key, dict[str, Any]]]:
    """Return pydantic's errors by the keys that a person wrote: one per key, and only the innermost of nested ones.

    Pydantic adds what it tried of a union to the path; no key in the data has that name.
    """
    by_key: dict[Key, dict[str, Any]] = {}
    for item in error.errors(include_url=False, include_input=False):
        key: Key = ()
        value = data
        for position, part in enumerate(item["loc"]):
            inner = get(value, (part,), default=NOTHING)
            if inner is not NOTHING:
                key, value = (*key, part), inner
            elif position == len(item["loc"]) - 1 and item["type"] == "missing" and isinstance(value, dict):
                key = (*key, part)
        by_key.setdefault(key, dict(item))
    outer = {key[:length] for key in by_key for length in range(len(key))}
    return [(key, item) for key, item in by_key.items() if key not in outer]
