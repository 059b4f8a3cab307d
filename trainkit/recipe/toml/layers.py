"""Layers of a recipe: a file over the files that it extends, and `--set` over all; each value keeps its origin."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import tomli

from trainkit.errors import TrainkitError
from trainkit.recipe.toml.positions import Key, Origin, dotted_key
from trainkit.text import shorten

#: More parts than any key has.
DEEPEST = 50
SET = Origin("--set")
DEFAULT = Origin("default")

#: Keys that exclude each other: a file or `--set` that gives one removes the others given earlier.
ONE_OF: dict[Key, frozenset[str]] = {
    ("train",): frozenset({"steps", "epochs", "tokens"}),
    ("tokenizer",): frozenset({"path", "train"}),
}
#: Keys that the `revision` beside them belongs to: a file or `--set` that gives one removes an older revision.
REVISED: dict[Key, frozenset[str]] = {
    ("tokenizer",): frozenset({"path", "train"}),
    ("model",): frozenset({"pretrained"}),
    ("adapter",): frozenset({"pretrained"}),
}
#: The default `type` of tables that have a choice of types; `*` is any place in a list.
TYPES: dict[Key, str] = {
    ("model",): "gpt2",
    ("model", "rope_scaling"): "linear",
    ("optimizer",): "adamw",
    ("optimizer", "learner"): "mirror-descent",
    ("optimizer", "groups", "*", "optimizer"): "adamw",
    ("optimizer", "groups", "*", "optimizer", "learner"): "mirror-descent",
    ("optimizer", "wrappers", "*"): "",
    ("average",): "ema",
    ("schedule",): "cosine",
    ("schedules", "weight_decay"): "cosine",
    ("schedules", "weight_decay", "parts", "*", "schedule"): "cosine",
    ("schedules", "momentum"): "cosine",
    ("schedules", "momentum", "parts", "*", "schedule"): "cosine",
    ("schedules", "beta2"): "cosine",
    ("schedules", "beta2", "parts", "*", "schedule"): "cosine",
    ("schedule", "parts", "*", "schedule"): "cosine",
    ("task",): "causal-lm",
    ("data", "encoding"): "concatenate",
    ("data", "train", "*"): "files",
    ("data", "train", "*", "document"): "",
    ("data", "validation", "*"): "files",
    ("data", "validation", "*", "document"): "",
    ("evaluate", "metrics", "*"): "",
}


class Layer:
    """A table, and where each part of it was written."""

    def __init__(self, table: dict[str, Any], origins: dict[Key, Origin], fallback: Origin, *, text: str = "") -> None:
        """Args:
        fallback: the origin of keys that have none.
        text: of the file."""
        self.table = table
        self.text = text
        self.origins = origins
        self.fallback = fallback

    def origin(self, key: Key) -> Origin:
        """Return where `key`, or the nearest table around it, was written."""
        while key and key not in self.origins:
            key = key[:-1]
        found = self.origins.get(key, self.fallback)
        return Origin(f"{SET} {dotted_key(key)}") if found == SET else found

    def leaf_origin(self, key: Key) -> Origin:
        """Return where a value was written; for a list that `--set` changed in one place, that is `--set`."""
        inner = [origin for known, origin in self.origins.items() if known[: len(key)] == key]
        return SET if SET in inner else self.origins.get(key, DEFAULT)

    def put(self, over: Layer) -> None:
        """Merge another layer over this one."""
        replaced: set[Key] = set()
        self._merge(self.table, over.table, (), over, replaced)

        def is_replaced(key: Key) -> bool:
            return any(key[:length] in replaced for length in range(1, len(key) + 1))

        # all at once: a file may have thousands of tables
        kept = {key: origin for key, origin in self.origins.items() if not is_replaced(key)}
        self.origins = kept | {key: origin for key, origin in over.origins.items() if is_replaced(key)}

    def _merge(self, base: dict[str, Any], over: dict[str, Any], key: Key, layer: Layer, replaced: set[Key]) -> None:
        if "type" in over:
            self.change_type(over["type"], base, key)
        self.remove_rivals(base, key, over.keys())
        for name, value in over.items():
            path = (*key, name)
            if isinstance(value, dict) and isinstance(base.get(name), dict):
                self.origins[path] = layer.origins[path]
                self._merge(base[name], value, path, layer, replaced)
            else:
                base[name] = value
                replaced.add(path)

    def remove_rivals(self, table: dict[str, Any], key: Key, given: Set[str]) -> None:
        """Remove older keys that contradict the `given` ones: those that they exclude, and the revision of a value that
        changes. A revision from `--set` stays, because it may have been typed before the value that it belongs to."""
        rivals = ONE_OF.get(key, frozenset())
        old = rivals - given if rivals & given else frozenset()
        if REVISED.get(key, frozenset()) & given and self.origins.get((*key, "revision")) != SET:
            old |= {"revision"} - given
        for name in old & table.keys():
            del table[name]
            self.forget((*key, name))

    def change_type(self, kind: Any, table: dict[str, Any], key: Key) -> None:
        """Empty `table` if its type differs from `kind`: its keys were meant for the old type."""
        default = TYPES.get(tuple("*" if isinstance(part, int) else part for part in key))
        # the config.json of a checkpoint decides its family
        if default is None or ("pretrained" in table and "type" not in table):
            return
        if table.get("type", default) != kind:
            self._empty(table, key)

    def _empty(self, table: dict[str, Any], key: Key) -> None:
        """Remove what files have given. What `--set` has given stays: it may have been typed before the type."""
        for name in list(table):
            path = (*key, name)
            if isinstance(table[name], dict):
                self._empty(table[name], path)
            if self.leaf_origin(path) != SET:
                del table[name]
                self.forget(path)

    def forget(self, key: Key) -> None:
        """Remove the origins of `key` and of everything in it."""
        self.origins = {known: origin for known, origin in self.origins.items() if known[: len(key)] != key}


def table_at(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the table of a name; an empty one if the name is missing or holds something else."""
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def all_keys(value: Any, key: Key) -> list[Key]:
    """Return `key` and the keys of everything in its value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [key, *(found for part, child in inner for found in all_keys(child, (*key, part)))]


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
    if len(key) > DEEPEST:
        raise TrainkitError(
            f"no key has {len(key):,} parts", where=shorten(where), hint="`trainkit schema` lists all keys"
        )
    if key[0] == "mode":
        raise TrainkitError("a mode cannot be set", where=where, hint="--mode NAME chooses a mode of the recipe")
    put_value(layer, key, _override_value(text), SET, where=where)


def put_value(layer: Layer, key: Key, value: Any, origin: Origin, *, where: str) -> None:
    """Put the value of one key over the table.

    Args:
        key: names; a number, as text, is a place in a list.
        where: the place that an error names.

    Raises:
        TrainkitError: the key leads nowhere.
    """
    table: Any = layer.table
    at: Key = ()
    for part in key[:-1]:
        place = _place(table, str(part), where, at)
        at = (*at, place)
        if isinstance(table, dict) and place not in table:
            table[place] = {}
            layer.origins[at] = origin
        table = table[place]
    place = _place(table, str(key[-1]), where, at)
    if isinstance(table, dict):
        if origin == SET:
            _refuse_two(layer, table, (*at, place), where)
        if place == "type":
            layer.change_type(value, table, at)
        layer.remove_rivals(table, at, {str(place)})
    at = (*at, place)
    table[place] = value
    layer.forget(at)
    layer.origins |= {known: origin for known in all_keys(value, at)}


def _refuse_two(layer: Layer, table: dict[str, Any], key: Key, where: str) -> None:
    """Raise TrainkitError if `--set` has given a key that excludes this one: it is unknown which of them is meant."""
    rivals = ONE_OF.get(key[:-1], frozenset())
    for name in sorted(rivals - {key[-1]}) if key[-1] in rivals else ():
        if name in table and layer.leaf_origin((*key[:-1], name)) == SET:
            other = dotted_key((*key[:-1], name))
            raise TrainkitError(
                f"{dotted_key(key)} and {other} exclude each other", where=where, hint="leave out one of the two --set"
            )


def _place(table: Any, part: str, where: str, at: Key) -> Any:
    """Return a part of the override's key as it is used in `table`: a name, or a place in a list."""
    if isinstance(table, dict):
        return part
    if isinstance(table, list):
        if part.isdecimal() and int(part) < len(table):
            return int(part)
        found = f"{dotted_key(at)} is a list of {len(table)}"
        entry = f"write --set {dotted_key((*at, 0, part))}=…: " if table and not part.isdecimal() else ""
        raise TrainkitError(f"{found}; it has no index '{part}'", where=where, hint=f"{entry}indices count from 0")
    raise TrainkitError(
        f"{dotted_key(at)} is a value, not a table: it has no '{part}'", where=where, hint=f"--set {dotted_key(at)}=…"
    )


def _override_value(text: str) -> Any:
    try:
        table = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML, or a number with too many digits
        return text
    return table["value"] if table.keys() == {"value"} else text
