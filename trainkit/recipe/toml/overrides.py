"""`--set KEY=VALUE` over a recipe."""

from __future__ import annotations

from typing import Any

import tomli

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.layers import SET, Layer, all_keys
from trainkit.recipe.toml.positions import Key, dotted


def put_override(layer: Layer, override: str) -> None:
    """Put one `a.b=c` over the table; `c` is TOML, or else a bare string.

    Raises:
        TrainkitError: it is not written KEY=VALUE, or its key leads nowhere.
    """
    name, equals, text = override.partition("=")
    key: Key = tuple(part.strip() for part in name.split("."))
    where = f"--set {override}"
    if not equals or not all(key):
        raise TrainkitError("an override is written KEY=VALUE", where=where, hint="--set train.steps=100")
    table: Any = layer.table
    at: Key = ()
    for part in key[:-1]:
        place = _place(table, str(part), where, at)
        at = (*at, place)
        if isinstance(table, dict) and place not in table:
            table[place] = {}
            layer.origins[at] = SET
        table = table[place]
    place, value = _place(table, str(key[-1]), where, at), _override_value(text)
    if isinstance(table, dict):
        if place == "type":
            layer.change_type(value, table, at)
        layer.remove_rivals(table, at, {str(place)})
    at = (*at, place)
    table[place] = value
    layer.forget(at)
    layer.origins |= {known: SET for known in all_keys(value, at)}


def _place(table: Any, part: str, where: str, at: Key) -> Any:
    """Return a part of the override's key as it is used in `table`: a name, or a place in a list."""
    if isinstance(table, dict):
        return part
    if isinstance(table, list):
        if part.isdecimal() and int(part) < len(table):
            return int(part)
        found = f"{dotted(at)} is a list of {len(table)}"
        raise TrainkitError(f"{found}; it has no place '{part}'", where=where, hint="places count from 0")
    raise TrainkitError(f"{dotted(at)} is a value and holds no '{part}'", where=where, hint=f"--set {dotted(at)}=…")


def _override_value(text: str) -> Any:
    try:
        table = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    return table["value"] if table.keys() == {"value"} else text
