"""What a person probably meant: keys by the names of other trainers, misspelt keys and values, values in words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainkit.recipe import Recipe
from trainkit.recipe.toml.aliases import FOREIGN, Foreign
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import Node, branches, choices, has_list, has_table, keys_of, leaves, table, types_of
from trainkit.recipe.toml.value_aliases import PLAIN_KEYS, VALUE_HINTS, VALUES
from trainkit.recipe.toml.values import toml_value
from trainkit.text import shorten


def fit(node: Node, value: dict[str, Any], kind: str) -> int:
    """Return how well the keys of a table fit one of its types."""
    found = table(node, {"type": kind}) or {"properties": {}}
    missing = set(found.get("required", [])) - value.keys()
    return len(found["properties"].keys() & value.keys()) - 2 * len(missing)


class Meant(NamedTuple):
    """What an unknown key probably is."""

    hint: str = ""
    """What to write instead."""
    key: Key | None = None
    """The key that is meant, if there is only one."""
    is_same: bool = True
    """Whether its values mean the same there."""


def suggest(name: str, section: Key, known: list[str], language: type[Recipe] = Recipe) -> Meant:
    """Return what is meant by an unknown key of a section, which has the `known` keys."""
    if same := [key for key in known if _squeezed(key) == _squeezed(name)]:
        return Meant(f"did you mean {same[0]}?", (*section, same[0]))
    plain = name.strip().lower().replace("-", "_")
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
    foreign = FOREIGN.get(plain)
    if foreign and close and foreign.key.endswith(f".{plain}"):  # a group has learning_rate_factor instead
        foreign = None
    if foreign and foreign.key != dotted_key((*section, name)):
        return _alias(foreign, section)
    keys = list(leaves(language))
    elsewhere = [path for path in keys if path[-1] == plain and path[:-1] != section and name != "type"]
    if section and plain in ("extends", "schema"):
        return Meant(f"{plain} stands at the top of the file, above every section", (plain,))
    if len(elsewhere) == 1 or (elsewhere and not close):
        only = elsewhere[0] if len(elsewhere) == 1 else None
        return Meant(f"did you mean {' or '.join(map(dotted_key, elsewhere))}?", only)
    if close:
        return Meant(f"did you mean {close[0]}?", (*section, close[0]))
    names = {str(path[-1]): path for path in keys}
    far = difflib.get_close_matches(plain, names, n=1, cutoff=0.8)
    return Meant(f"did you mean {dotted_key(names[far[0]])}?") if far else Meant()


def _alias(foreign: Foreign, section: Key) -> Meant:
    """Return what a key of another trainer, written in a section, is called here."""
    target: Key = tuple(int(part) if part.isdecimal() else part for part in foreign.key.split("."))
    if target[:3] == ("data", "train", 0) and section[:1] == ("data",) and len(section) == 3:
        target = (*section, target[-1])  # the same key of this source
    called = f"it is called {foreign.key} here" if foreign.key else ""
    if foreign.key and target[:-1] == section:
        called = f"it is called {target[-1]} here"
    hint = "; ".join(part for part in (called, foreign.note) if part)
    return Meant(hint, target if foreign.key else None, is_same=not foreign.note)


def _squeezed(name: str) -> str:
    """Return a key without what people write differently: `batchSize`, `batch-size` and `BATCH_SIZE` are one."""
    return re.sub(r"[\W_]", "", name).lower()


def correction(key: Key, value: Any, node: Node, allowed: list[Any]) -> str:
    """Return how to write what was probably meant by a value, which is always allowed; empty if unclear."""
    pattern = _pattern(key)
    if isinstance(value, str) and (hint := VALUE_HINTS.get(pattern, {}).get(value.strip().lower())):
        return hint
    if isinstance(value, str) and (word := _word(pattern, value, allowed)) is not None:
        return f"did you mean {toml_value(word)}?"
    for words, meant in _candidates(str(key[-1]), value):
        if accepts(node, meant) and len(toml_value(meant)) < LONGEST:
            said = f"{key[-1]} = {toml_value(meant)}" if isinstance(key[-1], str) else toml_value(meant)
            return f"write {said}" if words == "write" else f"{words}: {said}"
    if isinstance(value, dict) and has_list(node) and isinstance(key[-1], str):
        return f"double the brackets: [[{dotted_key(key)}]]"
    return "" if isinstance(value, dict) else _in_table(key, pattern, value, node)


def _pattern(key: Key) -> str:
    """Return a key with `*` for places in lists, and validation sets as training sets, which have the same keys."""
    found = ".".join("*" if isinstance(part, int) else part for part in key)
    return found.replace("data.validation.*.", "data.train.*.")


def word_for(key: Key, value: str, allowed: list[Any]) -> str | None:
    """Return the allowed word that is meant by another one; None if that is unclear."""
    return _word(_pattern(key), value, allowed)


def _word(pattern: str, value: str, allowed: list[Any]) -> str | None:
    """Return the allowed word that is meant by another one: written otherwise, an alias, or misspelt."""
    words = [choice for choice in allowed if isinstance(choice, str)]
    alias = VALUES.get(pattern, {}).get(value.strip().lower())
    same = [word for word in words if _squeezed(word) == _squeezed(value)]
    close = difflib.get_close_matches(value.lower(), words, n=1, cutoff=0.5)
    return next((word for word in (*same, alias, *close) if word in words), None)


#: Characters of a value that is worth to be suggested.
LONGEST = 200
#: What a unit multiplies a number by.
_UNITS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MINUTES = {"s": 1 / 60, "sec": 1 / 60, "m": 1, "min": 1, "minutes": 1, "h": 60, "hours": 60, "d": 1440, "days": 1440}
#: Keys in which 4k is 4096.
_BINARY = re.compile("length|window|context|vocab")


def _candidates(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may be meant by a value, each with words that introduce it."""
    match value:
        case str():
            text = value.strip()
            if text.lower() in ("true", "false", "yes", "no", "on", "off"):
                yield "write", text.lower() in ("true", "yes", "on")
            if _is_number(text) and len(text) < 40:
                number = float(text.replace("_", ""))
                yield "write the number without quotes", int(number) if number.is_integer() else number
                yield "write the number without quotes", number
            yield from _with_unit(name, text)
            yield "write a list", [value]
        case float() if value.is_integer():
            yield "write it without a point or exponent", int(value)
        case list():
            yield "write a list of lists", [value]
            if len(value) == 1:
                yield "write it without brackets", value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield "write a string", toml_value(value)
        yield "write a list", [value]


def _with_unit(name: str, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the number that a text with a unit stands for, such as 4096 for `4k` and 0.1 for `10%`."""
    found = re.fullmatch(r"(\d[\d_]{0,14}(?:\.\d{1,9})?)\s*([A-Za-z%]{1,7})", text)
    if found is None:
        return
    number, unit = float(found[1].replace("_", "")), found[2].lower()
    units = _MINUTES if "minutes" in name else _UNITS | _BYTES
    if unit not in units:
        return
    factor = 1024 if unit == "k" and _BINARY.search(name) else units[unit]
    meant = round(number * factor, 9)
    yield "write the number alone", int(meant) if meant.is_integer() else meant


def _in_table(key: Key, pattern: str, value: Any, node: Node) -> str:
    """Return the table that is meant by a value in its place; empty if none is."""
    if not any("properties" in branch for branch in branches(node)) and not has_list(node):
        return ""
    items = next((branch["items"] for branch in branches(node) if isinstance(branch.get("items"), dict)), node)
    if not has_table(items):
        return ""
    brackets = f"[{dotted_key(key)}]" if has_table(node) else f"[[{dotted_key(key)}]]"
    place = pattern if items is node else f"{pattern}.*"
    kind = _word(f"{place}.type", value, types_of(items)) if isinstance(value, str) else None
    name = PLAIN_KEYS.get(pattern)
    if name and accepts(keys_of(items).get(name, {}), value):
        other = f'; type = "{kind}" makes one with random weights' if kind and pattern == "model" else ""
        if not kind or other:
            return f"write {brackets} with {name} = {toml_value(value)}{other}"
    if (name and has_table(keys_of(items).get(name, {}))) or name == "train":
        return f"write [[{dotted_key(key)}.{name}]] with path = {toml_value(value)}" if isinstance(value, str) else ""
    if kind and len(key) < 3:
        return f"write {brackets} with type = {toml_value(kind)}"
    return f"write a table: {key[-1]} = {{ type = {toml_value(kind)} }}" if kind else ""


def accepts(node: Node, value: Any) -> bool:
    """Return whether a node allows a value, as far as its own schema says: a table is not looked into."""
    return any(_accepts(branch, value) for branch in branches(node)) if node else False


def _accepts(branch: Node, value: Any) -> bool:
    if allowed := choices(branch):
        return any(value == choice and type(value) is type(choice) for choice in allowed)
    match branch.get("type"), value:
        case ("boolean", bool()) | ("string", str()) | ("object", dict()):
            return True
        case ("integer" | "number", bool()):
            return False
        case ("integer", int()) | ("number", int() | float()):
            return (
                branch.get("minimum", value) <= value <= branch.get("maximum", value)
                and (branch.get("exclusiveMinimum") is None or value > branch["exclusiveMinimum"])
                and (branch.get("exclusiveMaximum") is None or value < branch["exclusiveMaximum"])
            )
        case "array", list() if "prefixItems" in branch:
            nodes = branch["prefixItems"]
            return len(nodes) == len(value) and all(map(accepts, nodes, value))
        case "array", list():
            return len(value) >= branch.get("minItems", 0) and all(accepts(branch["items"], inner) for inner in value)
    return False


def _kinds(node: Node) -> set[str]:
    return {str(branch.get("type")) for branch in branches(node)}


def is_kind(value: Any, node: Node) -> bool:
    """Return whether a node allows the kind of a value, within bounds or not."""
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
    """Return the kind of a value, in words."""
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
    """Return a value as TOML, cut to `width` characters."""
    return shorten(toml_value(value), width)
