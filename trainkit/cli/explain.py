"""`trainkit explain`: what a key of a recipe means. Imports no numpy and no jax."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainkit.cli.arguments import Mode, Overrides, RecipePath
from trainkit.errors import TrainkitError
from trainkit.text import shorten

if TYPE_CHECKING:
    from trainkit.recipe import Recipe
    from trainkit.recipe.toml.load import Loaded
    from trainkit.recipe.toml.positions import Key
    from trainkit.recipe.toml.schema import Node

BRIEF = True
#: Characters of a value that are shown.
LONGEST = 2_000


def explain(
    recipe: RecipePath,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key such as train.batch_size, or a section.")] = "",
    overrides: Overrides = None,
    mode: Mode = "full",
) -> str:
    """Show a key's meaning, allowed values, value and origin.

    Without a KEY, list the recipe's sections.
    """
    from trainkit.hub.recipe import load
    from trainkit.recipe.toml import schema
    from trainkit.recipe.toml.describe import describe

    if not key and recipe.suffix != ".toml" and not recipe.exists():
        raise TrainkitError("explain needs a recipe", hint=f"such as: trainkit explain RECIPE.toml {recipe}")
    loaded = load(recipe, overrides or [], mode=mode)
    language = type(loaded.recipe)
    values = loaded.recipe.model_dump(by_alias=True)
    if loaded.recipe.sweep is not None:  # it is no part of what a run records
        values["sweep"] = loaded.recipe.sweep.model_dump()
    if not key:
        return "\n".join(_sections(values, loaded))
    parts: Key = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    node = schema.node_at(parts, values, language)
    if node is None:
        raise TrainkitError(f"a recipe has no key '{key}'", hint=_hint(parts, language))
    value = _value(values, parts)
    lines = [_line(key, value, loaded)]
    lines += [f"  {meaning}" for meaning in _meanings(node, value)]
    section = schema.node_at(parts[:-1], values, language)
    types = schema.types_of(section) if section and parts[-1] == "type" else []
    lines.append(f"  allowed: {' or '.join(map(json.dumps, types)) or describe(node)}")
    if "default" in node and node["default"] is not None and not isinstance(node["default"], dict):
        lines.append(f"  default: {json.dumps(node['default'])}")
    if parts[:2] == ("optimizer", "groups"):
        lines += _decisions(loaded.recipe)
    for name, child in schema.keys_of(node, value).items():
        inner = f"{key}.{name}"
        lines += ["", "  " + _line(inner, _value(values, (*parts, name)), loaded)]
        if said := schema.meaning_of(child) or (describe(child) if name != "type" else ""):
            lines.append(f"    {said}")
    return "\n".join(lines)


def _sections(values: dict[str, Any], loaded: Loaded) -> list[str]:
    """Return each key at the top of a recipe, and what it is for."""
    from trainkit.recipe.toml import schema

    lines = []
    for name, node in schema.keys_of(schema.root(type(loaded.recipe)), values).items():
        lines.append(_line(name, values.get(name), loaded))
        lines += [f"  {meaning}" for meaning in _meanings(node, values.get(name))]
    return lines


def _decisions(recipe: Recipe) -> list[str]:
    """Return which group of the optimizer decides about which parameters."""
    from trainkit.recipe.optimizers.groups import decisions
    from trainkit.recipe.sections.adapter import trained_shapes

    names = trained_shapes(recipe.model, recipe.adapter, vocab_size=1, sequence_length=recipe.data.positions)
    found = decisions(recipe.optimizer, names)
    return ["", "  where groups overlap, the last one decides:", *(f"    {line}" for line in found)] if found else []


def _meanings(node: Node, value: Any) -> list[str]:
    """Return what a key means; of a table what it is for, and then what its key says."""
    from trainkit.recipe.toml import schema

    table = schema.table(node, value) if schema.has_table(node) else None
    said = [schema.meaning_of(table) if table else "", schema.meaning_of(node)]
    return [meaning for meaning in dict.fromkeys(said) if meaning]


def _hint(key: Key, language: type[Recipe]) -> str:
    """Return what to ask for instead of a key that no recipe has."""
    from trainkit.recipe.toml import schema
    from trainkit.recipe.toml.positions import dotted_key
    from trainkit.recipe.toml.suggestions import ALIASES, suggest

    name, known = str(key[-1]), [dotted_key(leaf) for leaf in schema.leaves(language)]
    if dotted_key(key) in known:
        section = dotted_key(key[:-1])
        return f"it belongs to other types of [{section}] than this recipe's: --set {section}.type=… shows it"
    if name in ALIASES:
        return suggest(name, key[:-1], {leaf: {} for leaf in known}, language).hint
    near = difflib.get_close_matches(dotted_key(key), known, n=3) or [k for k in known if k.split(".")[-1] == name]
    return f"did you mean {' or '.join(near)}?" if near else "trainkit schema lists all keys"


def _line(key: str, value: Any, loaded: Loaded) -> str:
    from trainkit.recipe.toml.values import toml_value

    if isinstance(value, dict) or (isinstance(value, tuple) and value and isinstance(value[0], dict)):
        return f"[{key}]"
    said = "not given" if value is None else shorten(toml_value(value), LONGEST)
    origin = loaded.origins.get(key)
    return f"{key} = {said}" + (f"  ({origin})" if origin and value is not None else "")


def _value(values: Any, key: Key) -> Any:
    for part in key:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, tuple) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            return None
    return values
