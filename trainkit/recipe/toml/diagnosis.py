"""Everything that is wrong with a recipe, in one error.

Validators over several keys run only if each key is valid by itself, so one validation does not find everything: each
mistake is repaired in a copy (a misspelt key renamed, a wrong value replaced), and the copy is validated again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.spec import MissingKey, with_tuples
from trainkit.recipe.toml.describe import describe
from trainkit.recipe.toml.layers import SET, all_keys
from trainkit.recipe.toml.nested import NOTHING, errors_by_key, get, is_table, put, put_if_free
from trainkit.recipe.toml.positions import Key, Origin, dotted_key
from trainkit.recipe.toml.schema import (
    Node,
    choices,
    entry_of,
    has_table,
    keys_of,
    leaves,
    meaning_of,
    node_at,
    placeholder,
    types_of,
)
from trainkit.recipe.toml.suggestions import (
    Meant,
    accepts,
    correction,
    fit,
    is_kind,
    kind_of,
    short,
    suggest,
    word_for,
)
from trainkit.recipe.toml.values import toml_value

#: Keys of a file that are taken out of it before it is validated: a mistake is not repaired by moving it there.
TAKEN = ("extends", "mode")
#: Largest number of validations; each finds what earlier mistakes hid.
LOOKS = 8
#: Largest number of mistakes that are looked into and shown: nobody reads thousands.
SHOWN = 50


@dataclass(frozen=True)
class Mistake:
    """One mistake of a recipe, with its place and hint."""

    where: Origin
    problem: str
    hint: str = ""


def diagnose(
    values: dict[str, Any],
    error: ValidationError,
    *,
    origin: Callable[[Key], Origin],
    name: str,
    language: type[Recipe] = Recipe,
) -> TrainkitError:
    """Return one error with all mistakes, each with file, line, key, value, allowed values and what to write instead.

    Args:
        error: what validating `values` raised.
        origin: returns where a key, or the nearest table around it, was written.
        name: of the file.
        language: the class that validated `values`.
    """
    count = error.error_count()
    mistakes = _Search(deepcopy(values), origin, language).all(error)
    if len(mistakes) == 1:
        return TrainkitError(mistakes[0].problem, where=str(mistakes[0].where), hint=mistakes[0].hint)
    blocks = [f"{len(mistakes)} mistakes" if count <= SHOWN else f"{count:,} mistakes; {len(mistakes)} of them:"]
    for mistake in mistakes:
        block = f"{mistake.where}: {mistake.problem}"
        blocks.append(block + (f"\n  hint: {mistake.hint}" if mistake.hint else ""))
    return TrainkitError("\n\n".join(blocks), where=name)


class _Search:
    """Collects mistakes while it repairs `data`."""

    def __init__(self, data: dict[str, Any], origin: Callable[[Key], Origin], language: type[Recipe]) -> None:
        self.data = data
        self.language = language
        self.origin = origin
        self.found: dict[Key | str, Mistake] = {}
        self.repaired: set[Key] = set()
        #: A renamed key -> the key as written, to find its line.
        self.written: dict[Key, Key] = {}

    def all(self, error: ValidationError) -> list[Mistake]:
        for _ in range(LOOKS):
            errors = errors_by_key(error, self.data)
            unknown = [key for key, e in errors if e["type"] == "extra_forbidden"]
            before = len(self.found)
            for key in unknown:
                if len(self.found) < SHOWN:
                    self._unknown(key)
            for key, e in [] if unknown else errors:
                if len(self.found) >= SHOWN:
                    break
                if e["type"] == "value_error" and isinstance(missing := e["ctx"]["error"], MissingKey):
                    self._missing((*key, *missing.key.split(".")), f"needed because {missing.why}")
                elif e["type"] == "value_error":
                    self._contradiction(key, str(e["ctx"]["error"]))
                elif e["type"] == "missing" and get(self.data, key, NOTHING) is NOTHING:
                    self._missing(key)
                elif not self._was_repaired(key):
                    self._wrong(self._whole(key))
            if len(self.found) in (before, SHOWN):
                break
            try:
                self.language.model_validate(with_tuples(self.data))
                break
            except ValidationError as again:
                error = again
        assert self.found, error
        return sorted(self.found.values(), key=lambda mistake: mistake.where)

    def _node(self, key: Key) -> Node | None:
        return node_at(key, self.data, self.language)

    def _where(self, key: Key) -> Origin:
        return self.origin(self._source(key))

    def _source(self, key: Key) -> Key:
        """Return the key that stands in the file: as written, or one that a repair moved into a section it has not."""
        written = self._as_written(key)
        found = self.origin(written)
        if found.line or found.file.startswith(str(SET)):
            return written
        return next((source for target, source in self.written.items() if target[:1] == key[:1]), key)

    def _as_written(self, key: Key) -> Key:
        """Return the key that a repair gave this name."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.written:
                return self.written[key[:length]] + key[length:]
        return key

    def _written_as(self, key: Key) -> str:
        """Return the name that stands in the file, in brackets, where a repair moved the value to another key."""
        source = self._source(key)
        names = [[part for part in path if isinstance(part, str)][-1:] for path in (source, key)]
        return f" (written as {dotted_key(source)})" if names[0] != names[1] else ""

    def _unknown(self, key: Key) -> None:
        section, name = key[:-1], str(key[-1])
        value = get(self.data, key)
        known = list(keys_of(self._node(section) or {}, get(self.data, section)))
        other = self._of_another_type(section, name)
        meant = Meant(other) if other else suggest(name, section, known, self.language)
        hint = meant.hint
        said = f"{dotted_key(key)} = {short(value)}" if not isinstance(value, dict) else f"[{dotted_key(key)}]"
        problem = f"{said}{self._written_as(key)}: no such {'section' if isinstance(value, dict) else 'key'}"
        if not hint:
            hint = f"allowed here: {', '.join(known)}" if known else "leave it out"
        self.found[key] = Mistake(self._where(key), problem, hint)
        get(self.data, section).pop(name)
        if meant.key and meant.key[0] not in TAKEN:
            self._move(self._as_written(key), meant.key, value, is_same=meant.is_same)

    def _move(self, source: Key, target: Key, value: Any, *, is_same: bool = True) -> None:
        """Put the value of an unknown key where it belongs, so that what is inside is checked too.

        A table goes there even if it is not quite the same: most of its keys have other names anyway.
        """
        node, present = self._node(target), get(self.data, target, NOTHING)
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
                self._move((*source, name), (*target, name), inner)
        elif (is_same or (isinstance(value, dict) and node and has_table(node))) and put_if_free(
            self.data, target, value
        ):
            self.written[target] = source

    def _of_another_type(self, section: Key, name: str) -> str:
        node = self._node(section)
        having = [kind for kind in types_of(node) if name in keys_of(node, {"type": kind})] if node else []
        if not having:
            return ""
        close = difflib.get_close_matches(name, keys_of(node or {}, get(self.data, section)), n=1, cutoff=0.85)
        meant = f"did you mean {close[0]}? " if close else ""
        return f"{meant}{name} goes with type = {' or '.join(map(toml_value, having))}"

    def _missing(self, key: Key, why: str = "") -> None:
        node = self._node(key)
        assert node is not None, key
        put(self.data, key, placeholder(node))
        if any(key[: len(known)] == known for known in self.repaired):
            return  # a repair removed it
        self.repaired.add(key)
        what = f"section [{dotted_key(key)}]" if has_table(node) and not choices(node) else dotted_key(key)
        if key == ("data", "train"):
            what = "[[data.train]]"
        hint = f"{dotted_key(key)} is {describe(node)}" + (f": {meaning_of(node)}" if meaning_of(node) else "")
        section = self._node(key[:-1])
        if section and len(types := types_of(section)) > 1 and "type" not in get(self.data, key[:-1]):
            hint += f"; or say type = {' or '.join(map(toml_value, types))}"
        if key == ("schema",):
            hint = "begin the recipe with: schema = 1"
        problem = f"{what} is missing" + (f", {why}" if why else "")
        self.found[key] = Mistake(self._where(key[:-1]), problem, hint)

    def _was_repaired(self, key: Key) -> bool:
        return any(key[: len(known)] == known for known in self.repaired)

    def _whole(self, key: Key) -> Key:
        """Return the key of the list where the entry of a list is wrong because the list should be in another one."""
        outer, node = get(self.data, key[:-1]), self._node(key[:-1])
        is_pair = isinstance(key[-1], int) and isinstance(outer, list) and node is not None and accepts(node, [outer])
        return key[:-1] if is_pair else key

    def _wrong(self, key: Key) -> None:
        value, node = get(self.data, key), self._node(key)
        assert node is not None, key
        if isinstance(value, dict) and has_table(node):
            key, is_missing, value = (*key, "type"), "type" not in value, value.get("type")
            allowed: list[Any] = types_of(node)
            expected = " or ".join(map(toml_value, allowed))
        else:
            allowed, expected, is_missing = choices(node), describe(node), False
        found = " is missing" if is_missing else f" = {short(value)}"
        problem = f"{dotted_key(key)}{found}{self._written_as(key)}: expected {expected}"
        if not is_missing and not is_kind(value, node) and not allowed:
            problem += f", found {kind_of(value)}"
        if key[-1] == "type" and isinstance(value, str):
            allowed = self._likely_types(key, node, value, allowed)
        self.found.setdefault(key, Mistake(self._where(key), problem, correction(key, value, node, allowed)))
        self.repaired.add(key)
        self._replace(key, node, allowed)

    def _likely_types(self, key: Key, node: Node, value: str, allowed: list[Any]) -> list[Any]:
        """Return the type nearest to a misspelt one; of equally near types the one that fits the keys of the table.

        Return all where none is near.
        """
        if not allowed:
            return allowed
        word = word_for(key, value, allowed)
        if word is not None and word not in difflib.get_close_matches(value, allowed):
            return [word]  # an alias
        near = {kind: difflib.SequenceMatcher(None, value.lower(), kind).ratio() for kind in allowed}
        nearest = [kind for kind in allowed if near[kind] == max(near.values())]
        if near[nearest[0]] < 0.5:
            return allowed
        return [max(nearest, key=partial(fit, node, get(self.data, key[:-1])))]

    def _replace(self, key: Key, node: Node, allowed: list[Any]) -> None:
        if key[-1] == "type" and allowed:
            # the other keys of the table are checked against the type that was probably meant
            put(self.data, key, max(allowed, key=partial(fit, node, get(self.data, key[:-1]))))
        elif "default" in node:
            get(self.data, key[:-1]).pop(key[-1])
        else:
            put(self.data, key, placeholder(node))

    def _contradiction(self, key: Key, message: str) -> None:
        """Record a contradiction between keys, unless its message names a repaired key: then the repair caused it."""
        words = set(re.findall(r"\w+", message))
        inside = [known for known in self.repaired if known[: len(key)] == key]
        around = [known for known in self.repaired if key[: len(known)] == known]
        if around or any(str(known[-1]) in words for known in inside):
            return
        value = get(self.data, key)
        if not isinstance(value, dict):
            said = f"{dotted_key(key)} = {short(value)}{self._written_as(key)}"
            self.found[message] = Mistake(self._where(key), f"{said}: {message}")
            return
        # a person looks at the first key that the message names
        paths = [(*key, name) for name in value if name in words]
        whole = [tuple(map(_part, name.split("."))) for name in re.findall(r"\w+(?:\.\w+)+", message)]
        if existing := [path for path in whole if get(self.data, path, NOTHING) is not NOTHING]:
            if any(known[: len(existing[0])] == existing[0] for known in self.repaired):
                return
            self.found[message] = Mistake(self._where(existing[0]), message + self._written_as(existing[0]))
            return
        if not key:
            paths = [path for path in leaves(self.language) if len(path) > 1 and dotted_key(path) in message]
            paths = paths or [path for path in all_keys(self.data, ()) if path and path[-1] in words]
        named = sorted(paths, key=lambda path: message.index(str(path[-1])))
        problem = (f"[{dotted_key(key)}]: {message}" if key else message) + self._written_as(named[0] if named else key)
        self.found[message] = Mistake(self._where(named[0] if named else key), problem)


def _part(name: str) -> str | int:
    return int(name) if name.isdecimal() else name
