"""The mistakes of a recipe, found one after another: each is repaired in a copy, which is validated again."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from trainkit.recipe import Recipe
from trainkit.recipe.spec import MissingKey, with_tuples
from trainkit.recipe.toml.alias_by_value import hint_by_value
from trainkit.recipe.toml.aliases import ALIASES
from trainkit.recipe.toml.components import component_hint
from trainkit.recipe.toml.corrections import correction, fit_score, short, word_for
from trainkit.recipe.toml.describe import describe
from trainkit.recipe.toml.kinds import accepts, is_kind, kind_of
from trainkit.recipe.toml.layers import SET, all_keys
from trainkit.recipe.toml.nested import NOTHING, errors_by_key, get, put
from trainkit.recipe.toml.positions import Key, Origin, dotted_key
from trainkit.recipe.toml.repair import Repaired
from trainkit.recipe.toml.schema import (
    Node,
    choices,
    has_table,
    keys_of,
    leaves,
    meaning_of,
    placeholder,
    types_of,
)
from trainkit.recipe.toml.suggestions import LONGEST, Meant, suggest
from trainkit.recipe.toml.value_aliases import pattern_of
from trainkit.recipe.toml.values import toml_value
from trainkit.text import shorten

#: Largest number of validations; each finds what earlier mistakes hid.
LOOKS = 8
#: Largest number of mistakes that are diagnosed and shown: nobody reads thousands.
SHOWN = 50


@dataclass(frozen=True)
class Mistake:
    """One mistake of a recipe, with its place and hint."""

    where: Origin
    problem: str
    hint: str = ""

    @property
    def place(self) -> str:
        """The place as text: of an override only `--set`, if the problem begins with the key."""
        place, key = str(self.where), self.where.file.removeprefix(f"{SET} ")
        return str(SET) if place == f"{SET} {key}" and self.problem.startswith(f"{key} = ") else place


class MistakeFinder:
    """Collects mistakes while it repairs the values."""

    def __init__(self, values: dict[str, Any], origin: Callable[[Key], Origin], language: type[Recipe]) -> None:
        self.written = values
        self.values = Repaired(deepcopy(values), origin, language)
        self.found: dict[Key | str, Mistake] = {}
        #: Unknown tables that are no mistake of their own, because each of their keys is one.
        self.emptied: set[Key] = set()

    def all(self, error: ValidationError) -> list[Mistake]:
        for _ in range(LOOKS):
            errors = errors_by_key(error, self.values.data)
            unknown = [key for key, e in errors if e["type"] == "extra_forbidden"]
            before = len(self.found) + len(self.emptied)
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
                elif e["type"] == "missing" and get(self.values.data, key, NOTHING) is NOTHING:
                    self._missing(key)
                elif not self.values.was_repaired(key):
                    self._wrong(self._whole(key))
            if len(self.found) + len(self.emptied) == before or len(self.found) >= SHOWN:
                break
            try:
                self.values.language.model_validate(with_tuples(self.values.data))
                break
            except ValidationError as again:
                error = again
        assert self.found, error
        return sorted(self.found.values(), key=lambda mistake: mistake.where)

    def _unknown(self, key: Key) -> None:
        section, name = key[:-1], str(key[-1])
        value = get(self.values.data, key)
        known = keys_of(self.values.node(section) or {}, get(self.values.data, section))
        meant = self._meant(key, value, known)
        written = shorten(dotted_key(key), LONGEST)
        said = f"{written} = {short(value)}" if not isinstance(value, dict) else f"[{written}]"
        problem = f"{said}{self.values.written_as(key)}: no such {'section' if isinstance(value, dict) else 'key'}"
        corrected = self._corrected(key, value, meant)
        hint = f"{meant.hint}{' ' if meant.hint.endswith('?') else '; '}{corrected}" if corrected else meant.hint
        if not hint:
            hint = f"allowed here: {', '.join(known)}" if known else "leave it out"
        if meant.key and isinstance(value, dict) and self._leaves(meant.key, value):
            self.emptied.add(key)
        else:
            self.found[key] = Mistake(self.values.where(key), problem, hint)
        get(self.values.data, section).pop(name)
        if meant.key and not corrected:
            self.values.move(self.values.as_written(key), meant.key, value, is_same=not meant.note)

    def _meant(self, key: Key, value: Any, known: dict[str, Node]) -> Meant:
        """Return what is meant by an unknown key of a section with the `known` keys."""
        section, name = key[:-1], str(key[-1])
        other = self._of_another_type(section, name) or component_hint(key, value, self.values.node(section))
        meant = Meant(other) if other else suggest(name, section, known, self.values.language)
        if meant.note and (hint := hint_by_value(key, value, self.written, meant.note)):
            return meant._replace(hint=hint)
        if not isinstance(value, dict):
            return meant
        if meant.key and meant.key[-1] == "type":
            return Meant(f"it is called [{dotted_key(meant.key[:-1])}] here", meant.key[:-1])
        if not meant.hint and section and value.keys() & known.keys():
            return Meant(f"write its keys in [{dotted_key(section)}]", section)
        if meant.key and not meant.note and isinstance(get(self.values.data, meant.key), dict):
            return meant._replace(hint=f"write its keys in [{dotted_key(meant.key)}]")
        return meant

    def _leaves(self, section: Key, value: dict[str, Any]) -> bool:
        """Return whether every key of an unknown table belongs in another section than the table does, or nowhere."""
        known = keys_of(self.values.node(section) or {})
        if not known or value.keys() & known.keys():
            return False
        meant = [suggest(name, section, known, self.values.language) for name in value]
        return any(each.key for each in meant) and all(
            each.hint and (each.key is None or each.key[:-1] != section) for each in meant
        )

    def _corrected(self, key: Key, value: Any, meant: Meant) -> str:
        """Return how to write the value of an unknown key for the key that is meant; empty if it need not change."""
        node = self.values.node(meant.key) if meant.key and not meant.note else None
        if meant.key is None or node is None or isinstance(value, dict) or accepts(node, value):
            return ""
        around = self.values.node(meant.key[:-1]) if meant.key[-1] == "type" else None
        allowed = types_of(around) if around else choices(node)
        if isinstance(value, str) and value in allowed:
            return f"write {meant.key[-1]} = {toml_value(value)}"
        return correction(meant.key, value, node, allowed, as_override=self._is_override(key))

    def _is_override(self, key: Key) -> bool:
        return self.values.where(key).file.startswith(str(SET))

    def _of_another_type(self, section: Key, name: str) -> str:
        node = self.values.node(section)
        if pattern_of((*section, name)) in ALIASES:
            return ""  # other trainers mean something else by it
        having = [kind for kind in types_of(node) if name in keys_of(node, {"type": kind})] if node else []
        if not having:
            return ""
        close = difflib.get_close_matches(name, keys_of(node or {}, get(self.values.data, section)), n=1, cutoff=0.85)
        meant = f"did you mean {close[0]}? " if close else ""
        return f"{meant}{name} goes with type = {' or '.join(map(toml_value, having))}"

    def _missing(self, key: Key, why: str = "") -> None:
        node = self.values.node(key)
        assert node is not None, key
        put(self.values.data, key, placeholder(node))
        if any(key[: len(known)] == known for known in self.values.repaired):
            return  # a repair removed it
        self.values.repaired.add(key)
        if self._is_answered(key):
            return
        what = f"section [{dotted_key(key)}]" if has_table(node) and not choices(node) else dotted_key(key)
        if key == ("data", "train"):
            what = "[[data.train]]"
        hint = f"{dotted_key(key)} is {describe(node)}" + (f": {meaning_of(node)}" if meaning_of(node) else "")
        section = self.values.node(key[:-1])
        if section and len(types := types_of(section)) > 1 and "type" not in get(self.values.data, key[:-1]):
            hint += f"; or write type = {' or '.join(map(toml_value, types))}"
        if key == ("schema",):
            hint = "begin the recipe with: schema = 1"
        problem = f"{what} is missing" + (f", {why}" if why else "")
        self.found[key] = Mistake(self.values.where(key[:-1]), problem, hint)

    def _is_answered(self, key: Key) -> bool:
        """Return whether a hint already says to write a missing key, or a checkpoint that brings it."""
        if key[0] in ("model", "tokenizer") and any("pretrained" in mistake.hint for mistake in self.found.values()):
            return True
        whole, name = dotted_key(key), re.escape(str(key[-1]))
        named = re.compile(rf"\[{re.escape(whole)}\]|\b{re.escape(whole)}\b")
        beside = re.compile(rf"\btype = |\b{name}\b")
        hints = [(at, found.hint) for at, found in self.found.items() if not found.hint.startswith("allowed here")]
        return any(
            named.search(hint) if key[:-1] != at[:-1] or len(key) == 1 else beside.search(hint) for at, hint in hints
        )

    def _whole(self, key: Key) -> Key:
        """Return the key, or that of the list around it if only that list should be inside another one."""
        outer, node = get(self.values.data, key[:-1]), self.values.node(key[:-1])
        is_pair = isinstance(key[-1], int) and isinstance(outer, list) and node is not None and accepts(node, [outer])
        return key[:-1] if is_pair else key

    def _wrong(self, key: Key) -> None:
        value, node = get(self.values.data, key), self.values.node(key)
        assert node is not None, key
        beside: dict[str, Any] = {}
        if isinstance(value, dict) and has_table(node):
            beside, key, is_missing, value = value, (*key, "type"), "type" not in value, value.get("type")
            allowed: list[Any] = types_of(node)
            expected = " or ".join(map(toml_value, allowed))
        else:
            allowed, expected, is_missing = choices(node), describe(node), False
        found = " is missing" if is_missing else f" = {short(value)}"
        problem = f"{dotted_key(key)}{found}{self.values.written_as(key)}: expected {expected}"
        if not is_missing and not is_kind(value, node) and not allowed:
            problem += f", found {kind_of(value)}"
        if key[-1] == "type" and isinstance(value, str):
            allowed = self._likely_types(key, node, value, allowed)
        if is_missing:
            likely = max(allowed, key=partial(fit_score, node, beside))
            fits = keys_of(node, {"type": likely}).keys() & beside.keys()
            hint = f"add {'' if fits else 'a type, such as '}type = {toml_value(likely)}"
        else:
            hint = correction(key, value, node, allowed, as_override=self._is_override(key))
        self.found.setdefault(key, Mistake(self.values.where(key), problem, hint))
        self.values.repaired.add(key)
        self.values.replace(key, node, allowed)

    def _likely_types(self, key: Key, node: Node, value: str, allowed: list[Any]) -> list[Any]:
        """Return the type closest to a misspelt one; of equally close ones, the one that the other keys fit best.

        Return all of them if none is close.
        """
        if not allowed:
            return allowed
        word = word_for(key, value, allowed)
        if word is not None and [word] != difflib.get_close_matches(value.lower(), allowed, n=1, cutoff=0.5):
            return [word]  # an alias
        near = {kind: difflib.SequenceMatcher(None, value.lower(), kind).ratio() for kind in allowed}
        nearest = [kind for kind in allowed if near[kind] == max(near.values())]
        if near[nearest[0]] < 0.5:
            return allowed
        return [max(nearest, key=partial(fit_score, node, get(self.values.data, key[:-1])))]

    def _contradiction(self, key: Key, message: str) -> None:
        """Record a contradiction between keys, unless its message names a repaired key: then the repair caused it."""
        words = set(re.findall(r"\w+", message))
        inside = [known for known in self.values.repaired if known[: len(key)] == key]
        around = [known for known in self.values.repaired if key[: len(known)] == known]
        if around or any(str(known[-1]) in words for known in inside):
            return
        value = get(self.values.data, key)
        if not isinstance(value, dict):
            said = f"{dotted_key(key)} = {short(value)}{self.values.written_as(key)}"
            self.found[message] = Mistake(self.values.where(key), f"{said}: {message}")
            return
        # the place is that of the first key that the message names
        paths = [(*key, name) for name in value if name in words]
        whole = [
            tuple(int(part) if part.isdecimal() else part for part in name.split("."))
            for name in re.findall(r"\w+(?:\.\w+)+", message)
        ]
        if existing := [path for path in whole if get(self.values.data, path, NOTHING) is not NOTHING]:
            if any(known[: len(existing[0])] == existing[0] for known in self.values.repaired):
                return
            self.found[message] = Mistake(self.values.where(existing[0]), message + self.values.written_as(existing[0]))
            return
        if not key:
            paths = [path for path in leaves(self.values.language) if len(path) > 1 and dotted_key(path) in message]
            paths = paths or [path for path in all_keys(self.values.data, ()) if path and path[-1] in words]
        named = sorted(paths, key=lambda path: message.index(str(path[-1])))
        problem = (f"[{dotted_key(key)}]: {message}" if key else message) + self.values.written_as(
            named[0] if named else key
        )
        self.found[message] = Mistake(self.values.where(named[0] if named else key), problem)
