"""What a person probably meant by a wrong value: a misspelt word, a number with a unit, a value in place of a table."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from typing import Any

from trainkit.recipe.toml.describe import in_words
from trainkit.recipe.toml.in_tables import meant_in_table
from trainkit.recipe.toml.kinds import accepts, is_kind
from trainkit.recipe.toml.layers import SET
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import Node, branches, choices, has_list, meaning_of, table, types_of
from trainkit.recipe.toml.suggestions import squeeze
from trainkit.recipe.toml.value_aliases import VALUE_HINTS, VALUES, pattern_of
from trainkit.recipe.toml.values import key_name, toml_value
from trainkit.text import shorten


def fit(node: Node, value: dict[str, Any], kind: str) -> int:
    """Return how well the keys of a table fit one of its types."""
    found = table(node, {"type": kind}) or {"properties": {}}
    missing = set(found.get("required", [])) - value.keys()
    return len(found["properties"].keys() & value.keys()) - 2 * len(missing)


#: What VALUE_HINTS say of one key of a table, and not of more.
_WRITE = re.compile(r"^write \[(\S+)\] with (\w+) = \"?([\w-]+)\"?$")


def correction(key: Key, value: Any, node: Node, allowed: list[Any], *, as_override: bool = False) -> str:
    """Return how to write what was probably meant by a value, which is always allowed; empty if unclear.

    Args:
        as_override: whether the value stands in `--set`, where a key of a table is written `--set TABLE.KEY=VALUE`.
    """
    pattern = pattern_of(key)
    if isinstance(value, str) and (hint := VALUE_HINTS.get(pattern, {}).get(value.strip().lower())):
        return _WRITE.sub(rf"write {SET} \1.\2=\3", hint) if as_override else hint
    if (word := _word(pattern, value, allowed)) is not None:
        return f"did you mean {toml_value(word)}?"
    for words, meant in _candidates(str(key[-1]), value):
        if accepts(node, meant) and len(toml_value(meant)) < LONGEST:
            said = f"{key_name(key[-1])} = {toml_value(meant)}" if isinstance(key[-1], str) else toml_value(meant)
            return f"write {said}" if words == "write" else f"{words}: {said}"
    if isinstance(value, dict) and has_list(node) and isinstance(key[-1], str):
        return f"double the brackets: [[{dotted_key(key)}]]"
    if isinstance(value, dict):
        return ""
    if (inner := meant_in_table(key, value, node, _fitting)) is not None and len(short(value)) < LONGEST:
        random = f'; type = "{kind}" makes one with random weights' if (kind := _family(key, value, node)) else ""
        return inner.hint(key, as_override=as_override) + random
    return _out_of_range(value, str(key[-1]), node) or _explained(value, str(key[-1]), node)


def _fitting(key: Key, value: Any, node: Node) -> Any:
    """Return what is meant by a value of a key: the value itself if it is allowed; None if that is unclear."""
    if accepts(node, value):
        return value
    if (word := _word(pattern_of(key), value, choices(node))) is not None:
        return word
    found = (meant for _, meant in _candidates(str(key[-1]), value) if accepts(node, meant))
    return next((meant for meant in found if isinstance(value, str) or not isinstance(meant, str)), None)


def _family(key: Key, value: Any, node: Node) -> str | None:
    """Return the model family of the same name as a checkpoint; None if there is none, or the key has no families."""
    return _word("model.type", value, types_of(node)) if key == ("model",) else None


def _out_of_range(value: Any, name: str, node: Node) -> str:
    """Return which end of its range a number is beyond that is not written as a number of its key."""
    if is_kind(value, node):
        return ""  # what is expected says it
    for number in (value, *(meant for _, meant in _candidates(name, value))):
        for branch in branches(node) if isinstance(number, int | float) and not isinstance(number, bool) else ():
            if number > branch.get("maximum", math.inf):
                return f"the largest {name} is {in_words(branch['maximum'])}"
            if (end := branch.get("exclusiveMaximum")) is not None and number >= end:
                return f"{name} must be less than {in_words(end)}"
            if number < branch.get("minimum", -math.inf):
                return f"the smallest {name} is {in_words(branch['minimum'])}"
    return ""


#: Words of other languages for no value.
_NOTHING = ("none", "null", "nil", "~", "off", "no", "false", "disabled", "default", "auto", "n/a", "")


def _explained(value: Any, name: str, node: Node) -> str:
    """Return what a key is for, or its default in place of a word for none, where a value is of a wrong kind."""
    default, meaning = node.get("default"), meaning_of(node)
    if isinstance(value, str) and value.strip().lower() in _NOTHING and "default" in node:
        if "0 turns" in meaning:
            return f"write {name} = 0"
        there = "without it there is none" if default is None else f"the default is {short(default)}"
        return f"leave {name} out: {there}"
    first = re.split(r"[.] (?=[A-Z])", meaning)[0].rstrip(".")
    return f"{name} is: {first}" if first and not is_kind(value, node) else ""


def word_for(key: Key, value: str, allowed: list[Any]) -> str | None:
    """Return the allowed word that is meant by another one; None if that is unclear."""
    return _word(pattern_of(key), value, allowed)


def _word(pattern: str, value: Any, allowed: list[Any]) -> str | None:
    """Return the allowed word that is meant by another one: written otherwise, an alias, or misspelt."""
    words = [choice for choice in allowed if isinstance(choice, str)]
    text = value if isinstance(value, str) else toml_value(value) if isinstance(value, bool | int) else ""
    alias = VALUES.get(pattern, {}).get(text.strip().lower())
    same = [word for word in words if squeeze(word) == squeeze(text)]
    close = difflib.get_close_matches(text.lower(), words, n=1, cutoff=0.5) if isinstance(value, str) else []
    return next((word for word in (*same, alias, *close) if word in words), None)


#: Characters of a value that is worth to be suggested.
LONGEST = 200
#: What a unit multiplies a number by.
_UNITS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_MINUTES = {"s": 1 / 60, "sec": 1 / 60, "m": 1, "min": 1, "minutes": 1, "h": 60, "hours": 60, "d": 1440, "days": 1440}
#: What people count.
_NOUNS = re.compile("(step|epoch|token|sequence|sample|example|layer|head|device|gpu)s?")
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
            if text.endswith((",", ";")):
                yield from _candidates(name, text[:-1])
            if "," in text.strip("()[],; "):
                yield "write a list", [_number(part.strip()) for part in text.strip("()[],; ").split(",")]
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
    found = re.fullmatch(r"(\d[\d_]{0,14}(?:\.\d{1,9})?)\s*([A-Za-z%]{1,9})", text)
    if found is None:
        return
    number, unit = float(found[1].replace("_", "")), found[2].lower()
    units = _MINUTES if "minutes" in name else _UNITS | _BYTES
    if _NOUNS.fullmatch(unit):
        units = {unit: 1}
    if unit not in units:
        return
    factor = 1024 if unit == "k" and _BINARY.search(name) else units[unit]
    meant = round(number * factor, 9)
    yield "write the number alone", int(meant) if meant.is_integer() else meant


def _number(text: str) -> Any:
    """Return a text as the number that it is, or as it is."""
    return float(text) if _is_number(text) and len(text) < 40 else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?", text.strip()) is not None


def short(value: Any, width: int = 60) -> str:
    """Return a value as TOML, cut to `width` characters."""
    return shorten(toml_value(value), width)
