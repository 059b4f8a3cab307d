"""The recipe language as data: its keys, what each may hold, and what it means.

It is derived from pydantic's JSON schema of the specs and from the docstrings below their fields, so that it cannot
disagree with them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, get_args

from trainkit.recipe import Recipe
from trainkit.recipe.spec import Spec
from trainkit.recipe.toml.positions import Key
from trainkit.recipe.union import OneOf

#: A JSON schema, references resolved at its top level.
Node = dict[str, Any]


@cache
def schema(language: type[Recipe] = Recipe) -> Node:
    """Return the JSON schema of recipes of a class: the plain one, or one with what plugins add."""
    found = language.model_json_schema(by_alias=True)
    specs = _specs(language)
    for name, section in {"Recipe": found, **found["$defs"]}.items():
        # pydantic numbers specs that are alike even in their longer names
        for field, text in _docstrings(specs[re.sub(r"__\d+$", "", name)]).items():
            if field in section["properties"]:
                section["properties"][field]["description"] = text
    found["properties"]["extends"] = {
        "description": "Recipes that this one builds on, relative to this file. Tables merge, lists replace; later ones"
        " and this file win.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "default": [],
    }
    found["properties"]["mode"] = {
        "description": "Keys that `--mode NAME` puts over the recipe, in tables such as `[mode.toy]`. Even without a"
        " table, `toy` is a tenth of the run and `sanity` at most 20 steps; `full` is the recipe without a mode.",
        "type": "object",
        "properties": {},
        "additionalProperties": {"type": "object"},
    }
    return found


@cache
def root(language: type[Recipe] = Recipe) -> Node:
    """Return the schema with, beside each reference, the definitions that it refers to."""
    linked = deepcopy(schema(language))

    def link(node: Any) -> None:
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            link(inner)
        if isinstance(node, dict) and "$ref" in node:
            node["$defs"] = linked["$defs"]

    link(linked)
    return linked


def node_at(key: Key, data: Any, language: type[Recipe] = Recipe) -> Node | None:
    """Return the schema of `key` in `data`, whose `type` values choose among unions; None if there is no such key."""
    node = root(language)
    for part in key:
        child = _element(node, part) if isinstance(part, int) else keys_of(node, data).get(part, _any_key(node))
        if child is None:
            return None
        node = child
        data = _step(data, part)
    return node


def _any_key(node: Node) -> Node | None:
    """Return the schema of the values of a table that may have any keys; None for other tables."""
    return next(
        (b["additionalProperties"] for b in branches(node) if isinstance(b.get("additionalProperties"), dict)), None
    )


def keys_of(node: Node, value: Any = None) -> dict[str, Node]:
    """Return the keys of a table, each with its node; the `type` of the table's `value` chooses among several."""
    return (table(node, value) or {}).get("properties", {})


def every_key(node: Node) -> set[str]:
    """Return the keys of a table in all of its types."""
    return {name for branch in branches(node) for name in branch.get("properties", {})} if node else set()


def table(node: Node, value: Any = None) -> Node | None:
    """Return the table that a node stands for: of several the one with the value's `type`, or the default one."""
    tables = [branch for branch in branches(node) if branch.get("type") == "object"]
    if len(tables) > 1:
        wanted = value.get("type") if isinstance(value, dict) else None
        named = [t for t in tables if t["properties"]["type"]["const"] == wanted]
        return (named or [t for t in tables if "default" in t["properties"]["type"]] or tables)[0]
    return tables[0] if tables else None


def branches(node: Node) -> list[Node]:
    """Return the alternatives of a union, or the node itself, without `null`, which TOML cannot express."""
    node = _resolve(node)
    union = node.get("anyOf") or node.get("oneOf")
    if union is None:
        return [] if node.get("type") == "null" else [node]
    return [leaf for branch in union for leaf in branches(branch)]


def types_of(node: Node) -> list[str]:
    """Return the values that `type` may have in a table or union of tables."""
    return [
        branch["properties"]["type"]["const"]
        for branch in branches(node)
        if branch.get("type") == "object" and "type" in branch.get("properties", {})
    ]


def choices(node: Node) -> list[Any]:
    """Return the literal values that a node allows."""
    found: list[Any] = []
    for branch in branches(node):
        found += [branch["const"]] if "const" in branch else branch.get("enum", [])
    return found


def has_table(node: Node) -> bool:
    """Return whether a node allows a table."""
    return any(branch.get("type") == "object" for branch in branches(node))


def has_list(node: Node) -> bool:
    """Return whether a node allows a list."""
    return any(branch.get("type") == "array" for branch in branches(node))


def entry_of(node: Node) -> Node:
    """Return the schema of the entries of a list; an empty one, which allows nothing, where a node allows no list."""
    return next((branch["items"] for branch in branches(node) if isinstance(branch.get("items"), dict)), {})


@cache
def leaves(language: type[Recipe] = Recipe) -> tuple[Key, ...]:
    """Return every key of every table outside lists, tables included, in all of its types."""

    def walk(node: Node, key: Key) -> Iterator[Key]:
        seen: set[str] = set()
        for branch in branches(node):
            for name, child in branch.get("properties", {}).items():
                if name not in seen:
                    seen.add(name)
                    yield (*key, name)
                    yield from walk(child, (*key, name))

    return tuple(walk(root(language), ()))


def meaning_of(node: Node) -> str:
    """Return the docstring of a key on one line, or that of its table if the key has none."""
    text = node.get("description") or _resolve(node).get("description") or ""
    return " ".join(text.split())


def placeholder(node: Node) -> Any:
    """Return some allowed value, to replace a wrong one while looking for further mistakes."""
    branch = branches(node)[0]
    if "default" in branch:
        return branch["default"]
    allowed = choices(branch)
    match branch.get("type"):
        case "object":
            required = branch.get("required", [])
            return {name: placeholder(branch["properties"][name]) for name in required}
        case "array" if "prefixItems" in branch:
            return [placeholder(entry) for entry in branch["prefixItems"]]
        case "array":
            return [placeholder(branch["items"])] * branch.get("minItems", 0)
        case "integer" | "number" if not allowed:
            return max(min(1, branch.get("maximum", 1)), branch.get("minimum", 1))
        case "boolean":
            return False
        case _:
            return allowed[0] if allowed else "x"


def _specs(base: type[Spec]) -> dict[str, type[Spec]]:
    """Return all specs that a spec contains, by name, and by the longer name that pydantic gives if two are alike."""
    found: dict[str, type[Spec]] = {}
    seen: set[Any] = set()

    def walk(part: Any) -> None:
        for spec in part.members() if isinstance(part, OneOf) else ():
            walk(spec)
        if isinstance(part, type) and issubclass(part, Spec) and part not in seen:
            seen.add(part)
            found[part.__name__] = part
            found[f"{part.__module__}.{part.__name__}".replace(".", "__")] = part
            for field in part.model_fields.values():
                for inner in (field.annotation, *field.metadata):
                    walk(inner)
        for inner in get_args(part):
            walk(inner)

    walk(base)
    return found


def _docstrings(spec: type[Spec]) -> dict[str, str]:
    """Return the docstrings below the fields of a spec and of its bases."""
    found: dict[str, str] = {}
    for base in reversed([base for base in spec.__mro__ if issubclass(base, Spec)]):
        module = sys.modules[base.__module__]
        if getattr(module, base.__name__, None) is not base:
            continue  # made by `widen`: it has no source code
        for field, below in pairwise(_classes_of(module)[base.__name__].body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found


@cache
def _classes_of(module: ModuleType) -> dict[str, ast.ClassDef]:
    """Return the definitions of the classes of a module, by name."""
    return {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}


def _resolve(node: Node) -> Node:
    if "$ref" not in node:
        return node
    definition: Node = node["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return definition | {key: value for key, value in node.items() if key not in ("$ref", "$defs")}


def _element(node: Node, index: int) -> Node | None:
    for branch in branches(node):
        if "prefixItems" in branch:
            return branch["prefixItems"][index] if index < len(branch["prefixItems"]) else None
        if branch.get("type") == "array":
            return branch["items"]
    return None


def _step(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    if isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
        return data[part]
    return None
