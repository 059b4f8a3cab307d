"""Hints for wrong values: a misspelt word, a value in another form, a value in the place of a table."""

from __future__ import annotations

import difflib
import math
import re
from typing import Any

from trainkit.recipe.toml.candidates import candidates
from trainkit.recipe.toml.describe import in_words
from trainkit.recipe.toml.in_tables import meant_in_table
from trainkit.recipe.toml.kinds import accepts, is_kind
from trainkit.recipe.toml.layers import SET
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import Node, branches, choices, has_list, keys_of, meaning_of, root, table, types_of
from trainkit.recipe.toml.suggestions import squeeze
from trainkit.recipe.toml.value_aliases import VALUE_HINTS, VALUES, pattern_of
from trainkit.recipe.toml.values import key_name, toml_value
from trainkit.text import shorten

#: Most characters of a value that is suggested.
LONGEST = 200
#: A hint of VALUE_HINTS that gives a single key of a table.
_WRITE = re.compile(r"^write \[(\S+)\] with (\w+) = \"?([\w-]+)\"?$")
#: What people write to turn a key off.
_NOTHING = ("none", "null", "nil", "~", "off", "no", "false", "disabled", "default", "auto", "n/a", "")


def fit_score(node: Node, value: dict[str, Any], kind: str) -> int:
    """Return how well the keys of a table fit one of its types; higher is better."""
    found = table(node, {"type": kind}) or {"properties": {}}
    missing = set(found.get("required", [])) - value.keys()
    return len(found["properties"].keys() & value.keys()) - 2 * len(missing)


def correction(key: Key, value: Any, node: Node, allowed: list[Any], *, as_override: bool = False) -> str:
    """Return a hint that says what to write instead of a wrong value; empty if it is unclear what was meant.

    Whatever the hint says to write is allowed.

    Args:
        as_override: whether the value comes from `--set`, where a key of a table is written `--set TABLE.KEY=VALUE`.
    """
    pattern = pattern_of(key)
    if isinstance(value, str) and (hint := VALUE_HINTS.get(pattern, {}).get(value.strip().lower())):
        return _WRITE.sub(rf"write {SET} \1.\2=\3", hint) if as_override else hint
    if (word := _word(pattern, value, allowed)) is not None:
        return f"did you mean {toml_value(word)}?"
    points = keys_of(keys_of(root())["schedules"]).get(str(key[-1])) if isinstance(value, list) else None
    if points and accepts(points, value):
        return f"what changes during a run is in [schedules]: {key[-1]} = {toml_value(value)}"
    for words, meant in (*candidates(str(key[-1]), value), *_with_rest(value, node)):
        if accepts(node, meant) and len(toml_value(meant)) < LONGEST:
            said = f"{key_name(key[-1])} = {toml_value(meant)}" if isinstance(key[-1], str) else toml_value(meant)
            return f"write {said}" if words == "write" else f"{words}: {said}"
    if isinstance(value, dict) and has_list(node) and isinstance(key[-1], str):
        return f"double the brackets: [[{dotted_key(key)}]]"
    if isinstance(value, dict):
        return ""
    if (inner := meant_in_table(key, value, node, _interpret)) is not None and len(short(value)) < LONGEST:
        random = f'; type = "{kind}" instead starts from random weights' if (kind := _family(key, value, node)) else ""
        return inner.hint(key, as_override=as_override) + random
    return _out_of_range(value, str(key[-1]), node) or _explained(value, str(key[-1]), node)


def _with_rest(value: Any, node: Node) -> list[tuple[str, list[Any]]]:
    """Return the list that begins with a number and goes on as the default of its key, such as that of `betas`."""
    default = node.get("default")
    if not isinstance(value, int | float) or isinstance(value, bool) or not isinstance(default, list):
        return []
    return [("write a list", [value, *default[1:]])]


def _interpret(key: Key, value: Any, node: Node) -> Any:
    """Return what a value of a key means, in a form that the key allows; None if that is unclear."""
    if accepts(node, value):
        return value
    if (word := _word(pattern_of(key), value, choices(node))) is not None:
        return word
    found = (meant for _, meant in candidates(str(key[-1]), value) if accepts(node, meant))
    return next((meant for meant in found if isinstance(value, str) or not isinstance(meant, str)), None)


def _family(key: Key, value: Any, node: Node) -> str | None:
    """Return the model family of the same name as a checkpoint; None if there is none, or the key has no families."""
    return _word("model.type", value, types_of(node)) if key == ("model",) else None


def _out_of_range(value: Any, name: str, node: Node) -> str:
    """Return the bound that a number breaks, if it is also written in a form that the key does not take, as `"1e20"`.

    Otherwise return nothing.
    """
    if is_kind(value, node):
        return ""  # the problem already states the range
    for number in (value, *(meant for _, meant in candidates(name, value))):
        for branch in branches(node) if isinstance(number, int | float) and not isinstance(number, bool) else ():
            if number > branch.get("maximum", math.inf):
                return f"{name} must be at most {in_words(branch['maximum'])}"
            if (end := branch.get("exclusiveMaximum")) is not None and number >= end:
                return f"{name} must be less than {in_words(end)}"
            if number < branch.get("minimum", -math.inf):
                return f"{name} must be at least {in_words(branch['minimum'])}"
    return ""


def _explained(value: Any, name: str, node: Node) -> str:
    """Return what a key is for if a value has the wrong type; for a word such as "none", how to leave the key out."""
    default, meaning = node.get("default"), meaning_of(node)
    # -1 is what other trainers write for no limit
    is_nothing = value.strip().lower() in _NOTHING if isinstance(value, str) else value == -1 and default is None
    if is_nothing and "default" in node:
        if "0 turns" in meaning:
            return f"write {name} = 0"
        by_default = "by default it is not set" if default is None else f"the default is {short(default)}"
        return f"leave {name} out: {by_default}"
    first = re.split(r"[.] (?=[A-Z])", meaning)[0].rstrip(".")
    return f"{name} is: {first}" if first and not is_kind(value, node) else ""


def word_for(key: Key, value: str, allowed: list[Any]) -> str | None:
    """Return the allowed word that another one stands for; None if that is unclear."""
    return _word(pattern_of(key), value, allowed)


def _word(pattern: str, value: Any, allowed: list[Any]) -> str | None:
    """Return the allowed word that another one stands for: in other case, an alias or misspelt; None if unclear."""
    words = [choice for choice in allowed if isinstance(choice, str)]
    text = value if isinstance(value, str) else toml_value(value) if isinstance(value, bool | int) else ""
    alias = VALUES.get(pattern, {}).get(text.strip().lower())
    same = [word for word in words if squeeze(word) == squeeze(text)]
    close = difflib.get_close_matches(text.lower(), words, n=1, cutoff=0.5) if isinstance(value, str) else []
    return next((word for word in (*same, alias, *close) if word in words), None)


def short(value: Any, width: int = 60) -> str:
    """Return a value as TOML, cut to `width` characters."""
    return shorten(toml_value(value), width)
