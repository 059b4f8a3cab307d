"""Whether a value is of a kind and in a range that a key allows, and what kind it is, in words."""

from __future__ import annotations

from typing import Any

from trainkit.recipe.toml.schema import Node, branches, choices


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
            return "a number with a decimal point or exponent" if value.is_integer() else "a number with a fraction"
        case str():
            return "a string"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
    return "a date or time"
