"""Values of a run's own recipe that are beyond the ranges of today's recipes: the run was trained with them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from trainkit.recipe import Recipe
from trainkit.recipe.spec import LEAST, Spec, with_tuples
from trainkit.recipe.toml.layers import SET, Layer
from trainkit.recipe.toml.nested import get, put
from trainkit.recipe.toml.positions import Key

#: Upper bounds from here on were added when every number got a range; smaller ones have always been.
ADDED = 1000


def validate_recorded(language: type[Recipe], layer: Layer) -> Recipe:
    """Return the recipe of a run, whose values may be beyond the ranges that recipes have got since it was written.

    A bound takes the place of each such value while the rest is checked; then the value is put back.

    Raises:
        ValidationError: something else is wrong, or `--set` gives a value beyond its range.
    """
    beyond: dict[Key, Any] = {}
    recipe = None
    try:
        while recipe is None:
            try:
                recipe = language.model_validate(with_tuples(layer.table))
            except ValidationError as error:
                if not (found := {key: bound for key, bound in _bounds(error, layer) if key not in beyond}):
                    raise
                for key, bound in found.items():
                    beyond[key] = get(layer.table, key)
                    put(layer.table, key, bound)
    finally:
        for key, value in beyond.items():
            put(layer.table, key, value)
    for key, value in beyond.items():
        recipe = _with(recipe, key, value)
    return recipe


def _bounds(error: ValidationError, layer: Layer) -> list[tuple[Key, float]]:
    """Return the values that only a range refuses which older versions did not have, each with the nearest bound."""
    found: list[tuple[Key, float]] = []
    for item in error.errors(include_url=False):
        value, bounds = item["input"], item.get("ctx", {})
        highest, lowest = bounds.get("le", 0), bounds.get("ge", 0)
        key = _key(item["loc"], layer.table)
        if isinstance(value, bool) or get(layer.table, key) != value or layer.leaf_origin(key) == SET:
            continue
        if highest >= ADDED:
            found.append((key, highest))
        elif lowest < 0 or (lowest == LEAST and value > 0):
            found.append((key, lowest))
    return found


def _key(place: tuple[int | str, ...], table: Any) -> Key:
    """Return the key that pydantic's place stands for: without the names of the branches of unions."""
    key: Key = ()
    for part in place:
        if get(table, (*key, part)) is not None:
            key = (*key, part)
    return key


def _with(part: Any, key: Key, value: Any) -> Any:
    """Return a part of a recipe with another value at a key."""
    if not key:
        return value
    first, *rest = key
    if isinstance(part, Spec):
        return part.model_copy(update={str(first): _with(getattr(part, str(first)), tuple(rest), value)})
    if isinstance(part, dict):
        return part | {first: _with(part[first], tuple(rest), value)}
    return tuple(_with(inner, tuple(rest), value) if place == first else inner for place, inner in enumerate(part))
