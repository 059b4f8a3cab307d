"""Resolved recipes as written, whether or not they are still valid: values, where each was set, differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainkit.errors import TrainkitError

FILE, DEFAULT = "recipe.toml", "default"
#: The key that differs between all runs, so that it is never reported as a difference.
NAME = "run.name"


class RecipeEntry(NamedTuple):
    """One key of a recipe.

    Attributes:
        value: as TOML.
        origin: where it was set: `recipes/x.toml:14`, `--set` or `default`.
        meaning: the description of the key.
    """

    key: str
    value: str
    origin: str
    meaning: str


class RecipeChange(NamedTuple):
    """A key in which two recipes differ, with its entry before and after; None where a recipe lacks the key."""

    key: str
    old: RecipeEntry | None
    new: RecipeEntry | None


@dataclass(frozen=True)
class RecipeHistory:
    """The recipes of a run.

    Attributes:
        entries: those of the present recipe.
        changes: (attempt, what changed after it), the newest first.
        problem: why the recipe cannot be read; empty if it can.
    """

    entries: tuple[RecipeEntry, ...] = ()
    changes: tuple[tuple[int, tuple[RecipeChange, ...]], ...] = ()
    problem: str = ""


def read(run_directory: Path) -> RecipeHistory:
    """Return the run's recipe and how it changed."""
    try:
        newer = entries(run_directory / FILE)
    except TrainkitError as error:
        return RecipeHistory(problem=f"{error.where}: {error.problem}")
    newest, changes = tuple(newer.values()), []
    for attempt in sorted(_attempts(run_directory), reverse=True):
        try:
            older = entries(run_directory / f"recipe.before-{attempt}.toml")
        except TrainkitError:
            continue  # treated as if it had not been kept
        changes.append((attempt, changed_keys(older, newer)))
        newer = older
    return RecipeHistory(newest, tuple(changes))


def entries(path: Path) -> dict[str, RecipeEntry]:
    """Return every value of a resolved recipe by its dotted key. The origin of each is the comment on its line.

    Plugins are not imported, because a viewer must not run code that a run directory names: the keys of their types
    have no meaning here.

    Raises:
        TrainkitError: the file cannot be read, or is not TOML.
    """
    from trainkit.recipe.toml import schema
    from trainkit.recipe.toml.positions import dotted_key, locate
    from trainkit.recipe.toml.values import shown_value

    text, table = _parse(path)
    lines, places = text.split("\n"), locate(text)
    entries = {}
    for key, value in _leaves(table, ()):
        node, place = None if _of_unknown_type(key, table) else schema.node_at(key, table), places[key]
        origin = lines[place - 1].rpartition("  # ")[2] if "  # " in lines[place - 1] else f"{path.name}:{place}"
        name = dotted_key(key)
        entries[name] = RecipeEntry(name, shown_value(key, value), origin, schema.meaning_of(node) if node else "")
    return entries


def values(run_directory: Path) -> dict[str, str]:
    """Return every value of a run's recipe, as TOML, by its dotted key. Raises TrainkitError as `entries` does."""
    from trainkit.recipe.toml.positions import dotted_key
    from trainkit.recipe.toml.values import shown_value

    return {dotted_key(key): shown_value(key, value) for key, value in _leaves(_parse(run_directory / FILE)[1], ())}


def changed_keys(old: Mapping[str, RecipeEntry], new: Mapping[str, RecipeEntry]) -> tuple[RecipeChange, ...]:
    """Return the keys that differ, in the order of the new recipe, then those that the new recipe lacks."""
    keys = [*new, *(key for key in old if key not in new)]
    changes = [RecipeChange(key, old.get(key), new.get(key)) for key in keys]
    return tuple(c for c in changes if c.old is None or c.new is None or c.old.value != c.new.value)


def differing_keys(recipes: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys in which recipes differ or that some lack, in their order, except the run's name."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    return [key for key in keys if key != NAME and len({recipe.get(key) for recipe in recipes}) > 1]


def _attempts(run_directory: Path) -> Iterator[int]:
    for path in run_directory.glob("recipe.before-*.toml"):
        attempt = path.name.removeprefix("recipe.before-").removesuffix(".toml")
        if attempt.isdecimal():
            yield int(attempt)


def _of_unknown_type(key: tuple[str | int, ...], table: Mapping[str, Any]) -> bool:
    """Return whether `key` stands in a table whose `type` is not trainkit's own, such as a plugin's."""
    from trainkit.recipe.toml import schema

    value: Any = table
    for depth, part in enumerate(key):
        value = value[part]
        if isinstance(value, dict) and "type" in value:
            node = schema.node_at(key[: depth + 1], table)
            types = schema.types_of(node) if node else []
            if types and value["type"] not in types:
                return True
    return False


def _parse(path: Path) -> tuple[str, dict[str, Any]]:
    import tomli

    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        return text, tomli.loads(text)
    except OSError as error:
        raise TrainkitError(f"it cannot be read: {error.strerror}", where=path.name) from None
    except (UnicodeDecodeError, tomli.TOMLDecodeError, RecursionError) as error:
        raise TrainkitError(f"it is not TOML: {error}", where=path.name) from None


def _leaves(value: Any, key: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the values below `value` with their keys; walks into tables and lists of tables, as
    `recipe.toml.values.flat`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key, index))
    else:
        yield key, value
