"""The values of a recipe: by their keys, how those of two recipes differ, and as TOML, one value or a whole recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import trainkit
from trainkit.recipe.recipe import Recipe
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.redaction import redact

#: The values of a recipe that hold a secret, by their keys.
Secrets: TypeAlias = Mapping[Key, Any]


@dataclass(frozen=True)
class Difference:
    """One key in which two recipes differ; None where one of them has no such key."""

    key: str
    old: Any
    new: Any

    @property
    def is_of_secrets(self) -> bool:
        """Return whether the values differ in nothing but their secrets, such as a new password."""
        old, new = (redact(pair((self.key.rpartition(".")[2],), value)) for value in (self.old, self.new))
        return None not in (self.old, self.new) and old == new

    def __str__(self) -> str:
        return f"{self.key}: {_words_of(self.old)} -> {_words_of(self.new)}"


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Return the keys that differ, in the order of the recipe."""
    was, now = flat(old), flat(new)
    keys = [*was, *(key for key in now if key not in was)]
    return [Difference(dotted_key(k), was.get(k), now.get(k)) for k in keys if was.get(k) != now.get(k)]


def flat(recipe: Recipe) -> dict[Key, Any]:
    """Return every value by its key. Tables in lists have keys of their own; other lists are values."""
    return dict(_leaves(recipe.model_dump(by_alias=True), ()))


def secrets_of(recipe: Recipe) -> Secrets:
    """Return the values that `dumps` writes without their secrets, such as a URL with a password."""
    return {key: value for key, value in flat(recipe).items() if pair(key, value) != redact(pair(key, value))}


def pair(key: Key, value: Any) -> str:
    """Return the last name of a key and its value as TOML."""
    return f"{key_name(str(key[-1]))} = {toml_value(value)}"


def shown_value(key: Key, value: Any) -> str:
    """Return a value as TOML, without its secrets."""
    return redact(pair(key, value)).partition(" = ")[2]


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line."""
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
        case int() if abs(value) >= 1 << 10_000:
            return hex(value)  # Python writes no number of thousands of digits, but reads it in this form
        case _:
            # int, float ("1e-08", "inf", "nan") and TOML's dates and times read back as they are printed
            return str(value)


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if _is_table(value):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    elif _is_tables(value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key, index))
    else:
        yield key, value


def _is_table(value: Any) -> bool:
    """Return whether a value is written as a table."""
    return isinstance(value, dict)


def _is_tables(value: Any) -> bool:
    """Return whether a value is written as a list of tables."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, dict) for v in value)


def key_name(name: str) -> str:
    """Return a key as it is written in TOML, in quotes where it needs them."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else toml_value(name)


def _words_of(value: Any) -> str:
    return "not given" if value is None else toml_value(value)


def dumps(recipe: Recipe, origins: Mapping[str, str], path: Path, *, shown: Callable[[str], str] = str) -> str:
    """Return a resolved recipe as TOML, without its secrets; loading it with them gives an equal `Recipe`.

    Keys without a value are omitted.

    Args:
        origins: where each value came from, by dotted key; a comment on its line says so.
        path: the file that the recipe was read from.
        shown: returns what is written instead of a text of the recipe, an origin or the path.
    """

    def origin(key: Key) -> str:
        return _printable(redact(shown(origins[dotted_key(key)])))

    lines = [f"# resolved by trainkit {trainkit.__version__} from {_printable(redact(shown(str(path))))}"]
    lines += _table_lines(_show(recipe.model_dump(by_alias=True), shown), (), origin)
    return "\n".join(lines) + "\n"


def _show(value: Any, shown: Callable[[str], str]) -> Any:
    match value:
        case str():
            return shown(value)
        case dict():
            return {name: _show(inner, shown) for name, inner in value.items()}
        case list() | tuple():
            return tuple(_show(inner, shown) for inner in value)
    return value


def _table_lines(values: dict[str, Any], key: Key, origin: Callable[[Key], str]) -> Iterator[str]:
    values = {"type": values["type"], **values} if "type" in values else values
    inner = {name: value for name, value in values.items() if _is_table(value) or _is_tables(value)}
    for name, value in values.items():
        if name not in inner and value is not None:
            yield f"{redact(pair((name,), value))}  # {origin((*key, name))}"
    for name, value in inner.items():
        path = (*key, name)
        header = ".".join(key_name(part) for part in path if isinstance(part, str))
        if _is_table(value):
            implied = bool(value) and all(_is_table(v) for v in value.values() if v is not None)
            yield from (*(() if implied else ("", f"[{header}]")), *_table_lines(value, path, origin))
        else:
            for index, element in enumerate(value):
                yield from ("", f"[[{header}]]", *_table_lines(element, (*path, index), origin))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
