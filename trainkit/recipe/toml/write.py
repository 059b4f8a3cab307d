"""A recipe as TOML again: every default filled in, every line saying where its value came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trainkit
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.positions import Key, dotted
from trainkit.recipe.toml.values import is_table, is_tables, key_name, toml_value


def dumps(loaded: Loaded, *, shown: Callable[[str], str] = str) -> str:
    """The resolved recipe as TOML; loading it gives an equal `Recipe`. Keys that have no value are left out.

    `shown` is what is written for each of its texts, and for where a value comes from.
    """

    def origin(key: Key) -> str:
        return _printable(shown(loaded.origins[dotted(key)]))

    lines = [f"# resolved by trainkit {trainkit.__version__} from {_printable(shown(str(loaded.path)))}"]
    lines += _table(_shown(loaded.recipe.model_dump(by_alias=True), shown), (), origin)
    return "\n".join(lines) + "\n"


def _shown(value: Any, shown: Callable[[str], str]) -> Any:
    match value:
        case str():
            return shown(value)
        case dict():
            return {name: _shown(inner, shown) for name, inner in value.items()}
        case list() | tuple():
            return tuple(_shown(inner, shown) for inner in value)
    return value


def _table(values: dict[str, Any], key: Key, origin: Callable[[Key], str]) -> Iterator[str]:
    values = {"type": values["type"], **values} if "type" in values else values
    inner = {name: value for name, value in values.items() if is_table(value) or is_tables(value)}
    for name, value in values.items():
        if name not in inner and value is not None:
            yield f"{key_name(name)} = {toml_value(value)}  # {origin((*key, name))}"
    for name, value in inner.items():
        path = (*key, name)
        header = ".".join(key_name(part) for part in path if isinstance(part, str))
        if is_table(value):
            implied = bool(value) and all(is_table(v) for v in value.values() if v is not None)
            yield from (*(() if implied else ("", f"[{header}]")), *_table(value, path, origin))
        else:
            for index, element in enumerate(value):
                yield from ("", f"[[{header}]]", *_table(element, (*path, index), origin))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
