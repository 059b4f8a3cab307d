"""The class that a recipe of another trainer names, as `_component_` does: which type of a table it is here."""

from __future__ import annotations

from trainkit.recipe.toml.positions import Key
from trainkit.recipe.toml.schema import Node, types_of
from trainkit.recipe.toml.value_aliases import VALUE_HINTS, VALUES, pattern_of
from trainkit.recipe.toml.values import toml_value

#: Keys whose value is a class or function, of torchtune, Hydra, Lightning and others.
_KEYS = ("_component_", "_target_", "class_path", "_name_", "__class__")


def component_hint(key: Key, value: object, node: Node | None) -> str:
    """Return what to write in place of a key that names a class; empty if its table has no type of that name.

    Args:
        node: the schema of the table.
    """
    if key[-1] not in _KEYS or not isinstance(value, str) or node is None:
        return ""
    words = value.lower()
    known = VALUE_HINTS.get(pattern_of((*key[:-1], "type")), {})
    if hint := known.get(words.rpartition(".")[2]):
        return hint
    types = {kind: kind for kind in types_of(node) if kind}
    aliases = {name: kind for name, kind in VALUES.get(pattern_of((*key[:-1], "type")), {}).items() if len(name) > 4}
    # the longest name says most: adamw is no adam
    for name in sorted({**aliases, **types}, key=len, reverse=True):
        if name in words or name.replace("-", "_") in words:
            written = f"type = {toml_value({**aliases, **types}[name])}"
            if key[:-1] == ("model",):
                return f'write pretrained = "…", a checkpoint with its sizes; for random weights {written} and sizes'
            return f"write {written}"
    return ""
