"""What a key of the recipe language allows, in words."""

from __future__ import annotations

import json
import re

from trainkit.recipe.toml.schema import Node, branches, choices, types_of


def describe(node: Node) -> str:
    """Return what a node allows, in words, such as `a whole number of at least 1 or "auto"`."""
    if len(types := types_of(node)) > 1:
        return f"a table with type = {' or '.join(map(json.dumps, types))}"
    return " or ".join(dict.fromkeys(_describe(branch) for branch in branches(node)))


def _describe(branch: Node) -> str:
    if allowed := choices(branch):
        return " or ".join(json.dumps(value) for value in allowed)
    match branch.get("type"):
        case "integer":
            return "a whole number" + _bounds(branch, whole=True)
        case "number":
            return "a number" + _bounds(branch, whole=False)
        case "boolean":
            return "true or false"
        case "array" if "prefixItems" in branch:
            entries = branch["prefixItems"]
            kinds = list(dict.fromkeys(map(describe, entries)))
            return f"a list of {len(entries)}" + (
                f", each {kinds[0]}" if len(kinds) == 1 else f": {', then '.join(kinds)}"
            )
        case "array":
            least = "a list with at least one entry" if branch.get("minItems") else "a list"
            return f"{least}, each {describe(branch['items'])}"
        case "object":
            keys = branch.get("properties", {})
            kind = keys.get("type")
            if kind:
                return f'a table with type = "{kind["const"]}"'
            entry = branch.get("additionalProperties")
            if not keys and isinstance(entry, dict) and entry.get("type") == "array":
                return f"a table in which each key is {describe(entry)}"
            return f"a table of {', '.join(keys) or 'tables'}"
        case _:
            return "a string"


def _bounds(branch: Node, *, whole: bool) -> str:
    low, above = branch.get("minimum"), branch.get("exclusiveMinimum")
    high, below = branch.get("maximum"), branch.get("exclusiveMaximum")
    if whole and above is not None:
        low, above = above + 1, None
    if whole and below is not None:
        high, below = below - 1, None
    if low is not None and high is not None:
        return f" from {in_words(low)} to {in_words(high)}"
    words = [(low, "of at least"), (above, "greater than"), (high, "of at most"), (below, "less than")]
    said = [f"{word} {in_words(bound)}" for bound, word in words if bound is not None]
    return " " + " and ".join(said) if said else ""


def in_words(bound: float) -> str:
    """Return a bound as it is read and written: `1,000`, `0.5`, `1e-37`."""
    if isinstance(bound, int) or (bound.is_integer() and abs(bound) < 1e6):
        return f"{int(bound):,}"
    return re.sub(r"e\+?(-?)0?", r"e\1", f"{bound:g}")
