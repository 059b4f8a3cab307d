"""Hints for lines that are not TOML: YAML, JSON, Python, or a value without its quotes."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

_TRUTH = {word: word in ("true", "yes", "on") for word in ("true", "false", "yes", "no", "on", "off")}
#: What a line of a recipe looks like, for people who paste another language.
_LINE = "a line of a recipe is key = value or [section]"


def syntax_hint(line: str, message: str) -> str:
    """Return what to write in place of a line that the reader of TOML refused with a message."""
    pair = re.match(r"\s*([\w.\"-]+)\s*=\s*(.*?)\s*(#.*)?$", line)
    value = pair.group(2).rstrip(",") if pair else ""
    key = pair.group(1) if pair else "key"
    if yaml := re.match(r"[\s-]*([\w.-]+)\s*:(?:\s+(.*))?$", line):
        return _meant_by_yaml(yaml[1], yaml[2] or "")
    if value.lower() in _TRUTH:
        return _meant_by_truth(key, _TRUTH[value.lower()])
    if pair and value in ("None", "null", "nil", "~", ""):
        return "leave out a key that has no value"
    if "overwrite" in message or "twice" in message:
        return "this key or section was given before: keep one of the two"
    if "\\" in value:
        return "a backslash begins an escape in \"…\": write it twice, or use '…'"
    if number := _number(value):
        return f"write {key} = {number}"
    if re.match(r"(dict|list|tuple|set|int|float|str)\(|[\w.]+\(.*=.*\)$|lambda\b", value):
        return f"this is Python: {_LINE}; write a table as [{key}], with its keys below"
    if re.fullmatch(r"[\d.]+\s*(%|[A-Za-z]+)|[A-Za-z_./~*][^\"'\[\]{}]*", value):
        return f'write strings in quotes: {key} = "{value}"'
    if re.fullmatch(r"[\d.eE+_-]+", value) and message.startswith("Expected newline"):
        return "write one key = value per line, with no comma after it"
    if product := re.fullmatch(r"(\d{1,9})\s*\*\s*(\d{1,9})", value):
        return f"a recipe does not calculate: write {key} = {int(product[1]) * int(product[2])}"
    if value.count('"') % 2 or value.count("'") % 2:
        return "a string is not closed"
    if value.startswith("("):
        return "write a list in [ ]"
    return "" if pair else _meant_by_other_language(line)


def _number(text: str) -> str:
    """Return a number such as `1,000`, `.5` or `2.` as TOML writes it; empty for other text."""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", text):
        return text.replace(",", "_")
    found = re.fullmatch(r"([+-]?)(\d*)\.(\d*)((?:[eE][+-]?\d+)?)", text)
    is_odd = found is not None and (found[2] or found[3]) and not (found[2] and found[3])
    return f"{found[1]}{found[2] or 0}.{found[3] or 0}{found[4]}" if found and is_odd else ""


def _meant_by_truth(key: str, value: bool) -> str:
    """Return what to write for a key with `True` or `False`, which other languages have."""
    from trainkit.recipe.toml.aliases import ALIASES
    from trainkit.recipe.toml.schema import leaves

    said = str(value).lower()
    if key not in ALIASES or any(path[-1] == key for path in leaves()):
        return f"write {key} = {said}"
    return f"{said} has no capital; {key}: {_meant(key, value)}"


def _meant_by_yaml(name: str, text: str) -> str:
    """Return what to write in place of a key, a colon and a value."""
    called = _meant(name, _from_yaml(text))
    return "write = between key and value, not :, and [section] above the keys of a section" + (
        f"; {name}: {called}" if called else ""
    )


def _from_yaml(text: str) -> Any:
    """Return the value that a text is in YAML: a number, true or false, or the text; None if there is none."""
    plain = text.partition(" #")[0].strip()
    if plain.lower() in _TRUTH:
        return _TRUTH[plain.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(plain)
    return plain.strip("\"'") or None


def _meant(name: str, value: Any) -> str:
    """Return what to write for a key of which only the line is known, with its value where that is plain."""
    from trainkit.recipe.toml.alias_by_value import hint_by_value
    from trainkit.recipe.toml.corrections import correction
    from trainkit.recipe.toml.kinds import accepts
    from trainkit.recipe.toml.positions import dotted_key
    from trainkit.recipe.toml.schema import choices, keys_of, node_at, root
    from trainkit.recipe.toml.suggestions import Meant, suggest
    from trainkit.recipe.toml.values import toml_value

    meant = Meant(key=(name,)) if name in keys_of(root()) else suggest(name, (), {})
    if meant.note or meant.key is None or value is None:
        return hint_by_value((name,), value, {}, meant.note) or meant.hint
    node, table = node_at(meant.key, {}), dotted_key(meant.key[:-1])
    if node is None:
        return meant.hint
    if accepts(node, value):
        return f"write {meant.key[-1]} = {toml_value(value)} in [{table}]"
    corrected = correction(meant.key, value, node, choices(node))
    if len(meant.key) == 1:
        return corrected or f"write [{meant.key[0]}]"
    return f"{meant.hint.rstrip('?')}; {corrected}" if corrected else meant.hint


def _meant_by_other_language(line: str) -> str:
    """Return what a line of JSON, Python or a shell is, and how a recipe is written; empty for other lines."""
    if line.lstrip()[:1] in ("{", "}", '"'):
        return f"this is JSON: {_LINE}"
    if re.match(r"\s*(import|from|def|class|if|for)\b", line):
        return f"this is Python: {_LINE}"
    if re.match(r"\s*--\w", line):
        return f"this is an option of a command: {_LINE}"
    return _LINE if re.match(r"\s*[\w.-]+\s*(\S.*)?$", line) else ""
