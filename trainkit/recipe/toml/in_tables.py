"""The key of a table that a person probably meant by a value in the place of the table: `precision = "fp16"`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainkit.recipe.toml.kinds import accepts
from trainkit.recipe.toml.layers import SET
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import (
    Node,
    branches,
    choices,
    entry_of,
    has_list,
    has_table,
    keys_of,
    placeholder,
    table,
    types_of,
)
from trainkit.recipe.toml.value_aliases import PLAIN_KEYS, pattern_of
from trainkit.recipe.toml.values import key_name, toml_value

#: The key of a checkpoint, which brings the type and the sizes of its model.
CHECKPOINT = ("model", "pretrained")
#: Returns what a value of a key means, in a form that the key allows; None if that is unclear.
Interpret = Callable[[Key, Any, Node], Any]


@dataclass(frozen=True)
class KeyOfTable:
    """A key of a table, and the value that it probably should have, for a value in the place of the table."""

    key: Key
    """The key in the table. A 0 is the first entry of a list."""
    value: Any
    is_example: bool = False
    """Whether it only shows how the table is written, because no key of it takes the value."""
    needed: tuple[str, ...] = ()
    """Names of the other keys that the table must have."""

    def hint(self, key: Key, *, as_override: bool) -> str:
        """Return what to write in place of the value of `key`, in a file or as an override."""
        if self.is_example and not as_override:
            return f"write {self._header()} with keys such as {self._pair()}"
        if as_override:
            such = "write its keys, such as " if self.is_example else "write "
            return f"{such}{SET} {self._override()}"
        if isinstance(key[-1], str) and (any(isinstance(part, int) for part in key) or len(key) > 2):
            others = f", with {' and '.join(self.needed)}" if self.needed else ""
            return f"write a table: {key_name(str(key[-1]))} = {{ {self._pair()} }}{others}"
        others = "".join(f" and {name}" for name in self.needed)
        return f"write {self._header()} with {self._pair()}{others}"

    def _pair(self) -> str:
        return f"{key_name(str(self.key[-1]))} = {toml_value(self.value)}"

    def _header(self) -> str:
        names = ".".join(key_name(part) for part in self.key[:-1] if isinstance(part, str))
        return f"[[{names}]]" if isinstance(self.key[-2], int) else f"[{names}]"

    def _override(self) -> str:
        """Return KEY=VALUE; a list is given as a whole, and so is a table with a key that has a dot in its name."""
        key, value = self.key, self.value
        if key == CHECKPOINT:  # it has its own sizes: those of the file must go
            key, value = key[:-1], {str(key[-1]): value}
        while any(isinstance(part, int) or "." in part for part in key):
            value = [value] if isinstance(key[-1], int) else {key[-1]: value}
            key = key[:-1]
        # a bare word needs no quotes in a shell, unless TOML would read it as something else
        is_bare = isinstance(value, str) and value.isascii() and value[:1].isalpha() and value.isalnum()
        bare = value if is_bare and value not in ("true", "false", "inf", "nan") else toml_value(value)
        return shlex.quote(f"{dotted_key(key)}={bare}")


def meant_in_table(key: Key, value: Any, node: Node, interpret: Interpret) -> KeyOfTable | None:
    """Return the key of a table that a value in its place stands for; None if no table belongs there.

    Args:
        node: the schema of the key.
        interpret: returns what a value of a key of the table means.
    """
    entry = entry_of(node) if has_list(node) and not _has_keys(node) else node
    if not _has_keys(entry):
        return None
    at = key if entry is node else (*key, 0)
    for name, inner in _likely(at, value, entry, interpret):
        child = keys_of(entry, {"type": inner} if name == "type" else None).get(name, {})
        if _has_keys(child) or _has_keys(entry_of(child)):
            deeper = meant_in_table((*at, name), value, child, interpret)
            if deeper is not None and not deeper.is_example:
                return deeper
        elif inner is not None:
            return KeyOfTable((*at, name), inner, needed=_needed((*at, name), entry))
    return _example(at, entry)


def _has_keys(node: Node) -> bool:
    return any("properties" in branch for branch in branches(node)) if node else False


def _likely(at: Key, value: Any, entry: Node, interpret: Interpret) -> Iterator[tuple[str, Any]]:
    """Yield names of keys with what the value means there, the likeliest first; None where it means nothing."""
    keys = keys_of(entry)
    kinds = {"enum": types_of(entry)} if len(types_of(entry)) > 1 else {}
    if isinstance(value, str) and kinds and (kind := interpret((*at, "type"), value, kinds)) and at != ("model",):
        yield "type", kind
    plain = PLAIN_KEYS.get(pattern_of(at), "").split()
    required = [name for name in (table(entry) or {}).get("required", []) if name != "type"]
    for name in dict.fromkeys([*(name for name in plain if name in keys), *required]):
        yield name, interpret((*at, name), value, keys[name])
    for name, child in keys.items():
        # any word could be a path or a name, so a word counts only where a key has a list of allowed words
        if not isinstance(value, bool) and (choices(child) or not isinstance(value, str)) and not has_table(child):
            yield name, interpret((*at, name), value, child)


def _needed(key: Key, entry: Node) -> tuple[str, ...]:
    """Return the names of what a table must have beside a key; nothing beside a type or a checkpoint."""
    if key[-1] == "type" or key == CHECKPOINT:
        return ()
    return tuple(name for name in (table(entry) or {}).get("required", []) if name not in (key[-1], "type"))


def _example(at: Key, entry: Node) -> KeyOfTable | None:
    """Return a key of a table with a value that it allows; None if its keys are tables, or named by the recipe."""
    keys = keys_of(entry)
    plain = [*PLAIN_KEYS.get(pattern_of(at), "").split(), *keys]
    if len(types_of(entry)) > 1:
        plain = ["type"]
    names = [name for name in plain if name in keys]
    plain = [name for name in names if not _has_keys(keys[name]) and not _has_keys(entry_of(keys[name]))]
    if not plain:
        return None
    name, example = plain[0], keys[plain[0]]
    default = example.get("default")
    shown = default if default is not None and accepts(example, default) else placeholder(example)
    return KeyOfTable((*at, name), shown, is_example=True)
