"""What a person probably meant by an unknown key: a key by the name of another trainer, or a misspelt one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from trainkit.recipe import Recipe
from trainkit.recipe.toml.alias_families import family_of, without_ending
from trainkit.recipe.toml.alias_notes import Alias
from trainkit.recipe.toml.aliases import ALIASES, SECTION_ALIASES
from trainkit.recipe.toml.positions import Key, dotted_key
from trainkit.recipe.toml.schema import Node, entry_of, every_key, keys_of, leaves, root
from trainkit.recipe.toml.value_aliases import pattern_of

#: If a name may stand for more keys than this, none is suggested.
MOST_NEAR = 3
#: Characters of the longest name that is compared with keys.
LONGEST = 200


class Meant(NamedTuple):
    """What an unknown key probably is."""

    hint: str = ""
    """What to write instead."""
    key: Key | None = None
    """The key that is meant, if there is only one."""
    note: str = ""
    """How it differs, which is a part of the hint; empty if its values mean the same there."""


def suggest(name: str, section: Key, known: Mapping[str, Node], language: type[Recipe] = Recipe) -> Meant:
    """Return what is meant by an unknown key of a section, which has the `known` keys, each with its schema."""
    if len(name) > LONGEST:
        return Meant()  # comparing it takes seconds, and nobody means it
    if same := [key for key in known if squeeze(key) == squeeze(name)]:
        return Meant(f"did you mean {same[0]}?", (*section, same[0]))
    plain = name.strip().lower().replace("-", "_")
    local = SECTION_ALIASES.get(pattern_of(section), {}).get(plain, "")
    if local in known:
        return Meant(f"it is called {local} here", (*section, local))
    close = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
    alias = ALIASES.get(pattern_of((*section, plain))) or ALIASES.get(plain)
    if alias and close and alias.key.endswith(f".{plain}"):  # a group has learning_rate_factor instead
        alias = None
    if alias and alias.key != dotted_key((*section, name)):
        return _suggest_alias(alias, section)
    keys = leaves(language)
    if (path := tuple(re.split(r"[/:.]|__|->", plain.strip("-")))) in keys and len(path) > 1:
        return Meant(f"did you mean {dotted_key(path)}?", path)
    if entries := [key for key, node in known.items() if plain in every_key(entry_of(node))]:
        return Meant(f"it belongs in {' or '.join(f'[[{dotted_key((*section, key))}]]' for key in entries)}")
    elsewhere = [path for path in keys if path[-1] == plain and path[:-1] != section and name != "type"]
    if section and plain in ("extends", "schema"):
        return Meant(f"{plain} belongs at the top of the file, above every section", (plain,))
    if len(elsewhere) == 1 or (elsewhere and not close):
        only = elsewhere[0] if len(elsewhere) == 1 else None
        return Meant(f"did you mean {' or '.join(map(dotted_key, elsewhere))}?", only)
    if section != ("data",) and not elsewhere and plain in _keys_of_sources(language):
        return Meant("it belongs in [[data.train]]")
    if (family := family_of(plain)) and not difflib.get_close_matches(plain, known, n=1, cutoff=0.9):
        return _suggest_alias(family, section)
    if not section and (base := without_ending(plain)) != plain:
        alias = ALIASES.get(base, Alias(base if base in known else ""))
        return _suggest_alias(alias, section) if alias.key else Meant()
    longer = [key for key in known if len(plain) > 1 and key.startswith(plain)]
    if 0 < len(longer) <= MOST_NEAR:
        return _one_of(longer, section)
    if close:
        return _one_of(close, section)
    names = {str(path[-1]): path for path in keys}
    if far := difflib.get_close_matches(plain, names, n=1, cutoff=0.8):
        return Meant(f"did you mean {dotted_key(names[far[0]])}?")
    return _one_of(_with_part(plain, known, is_top=not section), section)


@cache
def _keys_of_sources(language: type[Recipe]) -> set[str]:
    """Return the keys of a source of data."""
    return every_key(entry_of(keys_of(keys_of(root(language))["data"])["train"]))


def _one_of(found: list[str], section: Key) -> Meant:
    """Return that one of the `found` keys of a section is meant; nothing if there are none, or too many."""
    if not 0 < len(found) <= MOST_NEAR:
        return Meant()
    return Meant(f"did you mean {' or '.join(found)}?", (*section, found[0]) if len(found) == 1 else None)


def _with_part(name: str, known: Iterable[str], *, is_top: bool) -> list[str]:
    """Return the keys that share a part with a name: `batch_size` for `bs`, `learning_rate` for `rate`, `points` for
    `num_points`. At the top, where keys are sections, `model_tag` is no [model]."""
    parts = set(name.split("_"))
    initials = [key for key in known if "_" in key and "".join(part[:1] for part in key.split("_")) == name]
    inside = [key for key in known if len(name) > 2 and any(part.startswith(name) for part in key.split("_"))]
    around = [key for key in known if len(key) > 2 and set(key.split("_")) <= parts and not is_top]
    return initials or inside or around


def _suggest_alias(alias: Alias, section: Key) -> Meant:
    """Return what trainkit calls a key of another trainer that is written in a section."""
    target: Key = tuple(int(part) if part.isdecimal() else part for part in alias.key.split("."))
    if target[:3] == ("data", "train", 0) and section[:1] == ("data",) and len(section) == 3:
        target = (*section, target[-1])  # the same key of this source
    called = f"it is called {alias.key} here" if alias.key else ""
    if alias.key and target[:3] == ("data", "train", 0) and len(target) > 3:
        called = f"it is called {target[-1]} in [[data.train]]"
    if alias.key and target[:-1] == section:
        called = f"it is called {target[-1]} here"
    if target == section:
        called = ""  # the line is in this section already
    hint = "; ".join(part for part in (called, alias.note) if part)
    return Meant(hint, target if alias.key else None, alias.note)


def squeeze(name: str) -> str:
    """Return a key without what people write differently: `batchSize`, `batch-size` and `BATCH_SIZE` are one."""
    return re.sub(r"[\W_]", "", name).lower()
