"""What a person probably meant, and what they wrote, in words."""

from __future__ import annotations

import difflib
import re
from typing import Any

from trainkit.recipe import Recipe
from trainkit.recipe.toml.aliases import FOREIGN
from trainkit.recipe.toml.positions import Key, dotted
from trainkit.recipe.toml.schema import Node, branches, has_list, leaves, table
from trainkit.recipe.toml.values import toml_value
from trainkit.text import shorten


def fit(node: Node, value: dict[str, Any], kind: str) -> int:
    """How well the keys of a table go with one of its types."""
    found = table(node, {"type": kind}) or {"properties": {}}
    missing = set(found.get("required", [])) - value.keys()
    return len(found["properties"].keys() & value.keys()) - 2 * len(missing)


def suggest(name: str, section: Key, known: list[str], language: type[Recipe] = Recipe) -> tuple[str, Key | None]:
    """(what to write instead, the key that it surely means) for an unknown key of a section."""
    foreign = FOREIGN.get(name)
    if foreign and foreign.key != dotted((*section, name)):
        target: Key = tuple(foreign.key.split("."))
        called = f"it is called {foreign.key} here" if foreign.key else ""
        if foreign.key and target[:-1] == section:
            called = f"it is called {target[-1]} here"
        hint = "; ".join(part for part in (called, foreign.note) if part)
        return hint, target if foreign.key and not foreign.note else None
    keys = list(leaves(language))
    elsewhere = [path for path in keys if path[-1] == name and path[:-1] != section and name != "type"]
    close = difflib.get_close_matches(name, known, n=1)
    if len(elsewhere) == 1 or (elsewhere and not close):
        return f"did you mean {' or '.join(map(dotted, elsewhere))}?", elsewhere[0] if len(elsewhere) == 1 else None
    if close:
        return f"did you mean {close[0]}?", (*section, close[0])
    names = {str(path[-1]): path for path in keys}
    far = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    return (f"did you mean {dotted(names[far[0]])}?", None) if far else ("", None)


def correction(key: Key, value: Any, node: Node, allowed: list[Any]) -> str:
    """How to write a value so that it is what was probably meant; empty where nobody can know."""
    name = key[-1]
    if isinstance(value, str):
        words = [choice for choice in allowed if isinstance(choice, str)]
        if close := difflib.get_close_matches(value, words, n=1, cutoff=0.5):
            return f"did you mean {toml_value(close[0])}?"
        if value.lower() in ("true", "false", "yes", "no", "on", "off") and "boolean" in _kinds(node):
            return f"write {name} = {'true' if value.lower() in ('true', 'yes', 'on') else 'false'}"
        if _is_number(value) and _kinds(node) & {"integer", "number"}:
            return f"write the number without quotes: {name} = {value}"
        if has_list(node):
            return f"write a list: {name} = [{short(value)}]"
    if isinstance(value, float) and value.is_integer() and "integer" in _kinds(node):
        return f"write it without a point or exponent: {name} = {int(value)}"
    if isinstance(value, int | float) and _kinds(node) == {"string"} and not allowed:
        return f'write a string: {name} = "{toml_value(value)}"'
    if isinstance(value, dict) and has_list(node) and isinstance(name, str):
        return f"double the brackets: [[{dotted(key)}]]"
    return ""


def _kinds(node: Node) -> set[str]:
    return {str(branch.get("type")) for branch in branches(node)}


def is_kind(value: Any, node: Node) -> bool:
    """Whether a value is of a kind that the node allows, in or out of bounds."""
    kinds = _kinds(node)
    match value:
        case bool():
            return "boolean" in kinds
        case int():
            return bool(kinds & {"integer", "number"})
        case float():
            return "number" in kinds
        case str():
            return "string" in kinds
        case list() | tuple():
            return "array" in kinds
    return False


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    match value:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?", text.strip()) is not None


def short(value: Any, width: int = 60) -> str:
    """A value as TOML, cut to `width` characters."""
    return shorten(toml_value(value), width)
