"""The values of a recipe while its mistakes are repaired one by one, and where each value was written.

A repair is a guess of what was meant. It is never used: it only lets the validators of other keys look further.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trainkit.recipe import Recipe
from trainkit.recipe.toml.corrections import fit_score
from trainkit.recipe.toml.layers import SET
from trainkit.recipe.toml.nested import NOTHING, get, is_table, put, put_if_free
from trainkit.recipe.toml.positions import Key, Origin, dotted_key
from trainkit.recipe.toml.schema import Node, entry_of, has_table, node_at, placeholder

#: Keys that are removed from a file before it is validated: no mistake is repaired by moving a value there.
TAKEN = ("extends", "mode")


class Repaired:
    """The values of a recipe, in which mistakes are repaired."""

    def __init__(self, data: dict[str, Any], origin: Callable[[Key], Origin], language: type[Recipe]) -> None:
        self.data = data
        self.language = language
        self.origin = origin
        self.repaired: set[Key] = set()
        #: A renamed key -> the key as written, to find its line.
        self.written: dict[Key, Key] = {}

    def node(self, key: Key) -> Node | None:
        """Return the schema of a key; None if there is no such key."""
        return node_at(key, self.data, self.language)

    def where(self, key: Key) -> Origin:
        """Return where a key was written."""
        return self.origin(self.source(key))

    def source(self, key: Key) -> Key:
        """Return the key in the file: as written, or any key that a repair moved into a section that the file lacks."""
        written = self.as_written(key)
        found = self.origin(written)
        if found.line or found.file.startswith(str(SET)):
            return written
        return next((source for target, source in self.written.items() if target[:1] == key[:1]), key)

    def as_written(self, key: Key) -> Key:
        """Return the key that a repair gave this name."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.written:
                return self.written[key[:length]] + key[length:]
        return key

    def written_as(self, key: Key) -> str:
        """Return the name in the file, in brackets, if a repair moved the value to another name; else nothing."""
        source = self.source(key)
        names = [[part for part in path if isinstance(part, str)][-1:] for path in (source, key)]
        return f" (written as {dotted_key(source)})" if names[0] != names[1] else ""

    def move(self, source: Key, target: Key, value: Any, *, is_same: bool = True) -> None:
        """Put the value of an unknown key where it belongs, so that what it contains is checked too.

        A table is moved even if its meaning differs: most of its keys have other names anyway.
        """
        if target[0] in TAKEN:
            return
        node, present = self.node(target), get(self.data, target, NOTHING)
        if node is not None and not has_table(node) and has_table(entry_of(node)) and is_table(value):
            entries = value if isinstance(value, list) else [value]
            if present is NOTHING and not put_if_free(self.data, target, []):
                return
            place = get(self.data, target)
            for number, entry in enumerate(entries) if isinstance(place, list) else ():
                self.written[*target, len(place)] = (*source, number) if entries is value else source
                place.append(entry)
        elif isinstance(value, dict) and isinstance(present, dict):
            for name, inner in value.items():
                self.move((*source, name), (*target, name), inner)
        elif (is_same or (isinstance(value, dict) and node and has_table(node))) and put_if_free(
            self.data, target, value
        ):
            self.written[target] = source

    def was_repaired(self, key: Key) -> bool:
        """Return whether a key or a table around it was repaired."""
        return any(key[: len(known)] == known for known in self.repaired)

    def replace(self, key: Key, node: Node, allowed: list[Any]) -> None:
        """Put a value that is allowed in the place of a wrong one."""
        if key[-1] == "type" and allowed:
            # the other keys of the table are checked against the type that was probably meant
            put(self.data, key, max(allowed, key=partial(fit_score, node, get(self.data, key[:-1]))))
        elif "default" in node:
            get(self.data, key[:-1]).pop(key[-1])
        else:
            put(self.data, key, placeholder(node))
