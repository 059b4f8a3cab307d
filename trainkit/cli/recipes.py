"""`trainkit check`, `explain` and `schema`: recipes, without training anything. Imports no numpy and no jax."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.hub.recipe import load, notes
from trainkit.plan import Devices, make_plan, steps_need_data
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded, locate_error
from trainkit.recipe.toml.positions import Key, dotted


def check(path: Path, overrides: Sequence[str]) -> str:
    """One line on a recipe that is right, and what is worth a look. Raises TrainkitError with all that is wrong."""
    loaded = load(path, overrides)
    recipe = loaded.recipe
    told = [f"{recipe.model.type}"]
    trained = recipe.tokenizer.train if recipe.tokenizer else None
    if (trained is not None or not recipe.data.is_text) and not steps_need_data(recipe):
        vocab_size = trained.vocab_size if trained else 0
        try:
            # as one device sees it; whether the batch divides over more is for trainkit plan, which knows the devices
            plan = make_plan(recipe, devices=Devices(count=recipe.parallel.fsdp), vocab_size=vocab_size, data=None)
        except TrainkitError as error:
            raise locate_error(error, loaded) from error
        unit = "examples" if plan.sequence_length is None else "tokens"
        told += [f"{plan.parameters:,} parameters", f"{plan.steps:,} steps of {plan.tokens_per_step:,} {unit}"]
    else:
        told.append(_length(loaded))
    lines = [f"ok: {recipe.run.name}: {', '.join(told)}", *(f"note: {note}" for note in notes(recipe))]
    return "\n".join(lines)


def explain(path: Path, key: str, overrides: Sequence[str]) -> str:
    """Value, origin, meaning and allowed values of a key; of a section, of each key in it."""
    from trainkit.recipe.toml import schema

    loaded = load(path, overrides)
    language = type(loaded.recipe)
    values = loaded.recipe.model_dump(by_alias=True)
    parts: Key = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    node = schema.node_at(parts, values, language)
    if node is None:
        known = [dotted(leaf) for leaf in schema.leaves(language)]
        near = difflib.get_close_matches(key, known, n=3) or [
            k for k in known if k.split(".")[-1] == key.split(".")[-1]
        ]
        raise TrainkitError(
            f"a recipe has no key '{key}'",
            hint=f"did you mean {' or '.join(near)}?" if near else "trainkit schema lists all keys",
        )
    value = _value(values, parts)
    lines = [_line(key, value, loaded)]
    if meaning := schema.meaning(node):
        lines.append(f"  {meaning}")
    lines.append(f"  allowed: {schema.describe(node)}")
    if "default" in node and node["default"] is not None and not isinstance(node["default"], dict):
        lines.append(f"  default: {json.dumps(node['default'])}")
    for name, child in schema.keys_of(node, value).items():
        inner = f"{key}.{name}"
        lines += ["", "  " + _line(inner, _value(values, (*parts, name)), loaded)]
        lines.append(f"    {schema.meaning(child)}".rstrip() or f"    {schema.describe(child)}")
    return "\n".join(lines)


def schema(path: Path | None = None) -> str:
    """Return the JSON schema of recipes, with what the plugins of the recipe at `path` add. Raises TrainkitError."""
    from trainkit.recipe.toml import schema

    language = type(load(path).recipe) if path else Recipe
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.schema(language)}, indent=2)


def _length(loaded: Loaded) -> str:
    train = loaded.recipe.train
    for unit, number in (("steps", train.steps), ("tokens", train.tokens)):
        if number is not None:
            return f"{number:,} {unit}"
    return f"{train.epochs:g} epochs"


def _line(key: str, value: Any, loaded: Loaded) -> str:
    from trainkit.recipe.toml.values import toml_value

    if isinstance(value, dict) or (isinstance(value, tuple) and value and isinstance(value[0], dict)):
        return f"[{key}]"
    said = "not given" if value is None else toml_value(value)
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
