"""Write docs/recipes-reference.md: every key of the recipe language, its range, its default and its meaning.

uv run python scripts/recipes_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainkit.recipe.toml.describe import describe
from trainkit.recipe.toml.positions import Key
from trainkit.recipe.toml.schema import (
    Node,
    branches,
    has_table,
    keys_of,
    meaning_of,
    root,
    table,
    types_of,
)
from trainkit.recipe.toml.values import toml_value

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes-reference.md"
HEAD = """\
# Every key of a recipe

`uv run python scripts/recipes_reference.py` wrote this page from the recipe language. `trainkit explain RECIPE KEY`
shows the same about one key, with its value in a recipe and where that comes from. A `*` in the name of a section is
any place in a list. Where a section has several types, a key belongs to those in its row.

Every number has a range. A run that was trained with a number beyond it, by an earlier version, can still be watched,
exported and resumed. Within the ranges a model, a sequence or a batch may still be too large: `trainkit check` refuses
one that needs 1000 times the memory of this machine, `trainkit run` one that needs 10 times as much, with the estimate.

"""


class Row(NamedTuple):
    """A key of a section, as some of its types have it."""

    name: str
    allowed: str
    default: str
    meaning: str


def page() -> str:
    """Return the page."""
    return HEAD + "\n".join(_section(root(), (), {})).rstrip() + "\n"


def _section(node: Node, key: Key, described: dict[tuple[str, ...], str]) -> Iterator[str]:
    """Yield the lines of a table and of the tables in it.

    Args:
        described: the sections so far, by the types that they choose from: the optimizer of a group has the same keys
            again.
    """
    name = ".".join(map(str, key))
    types = types_of(node) if len(types_of(node)) > 1 else []
    if name:
        yield from (f"## [{name}]", "")
    if types:
        same = next((other for known, other in described.items() if {*types} <= {*known}), None)
        yield from (f"`type` is one of {', '.join(f'`{kind}`' for kind in types)}.", "")
        if same is not None:
            yield from (f"The keys are those of [{same}].", "")
            return
        described[tuple(types)] = name
    elif name and (meaning := meaning_of(table(node) or {})):
        yield from (meaning, "")
    if rows := _rows(node, types):
        yield f"| key | allowed | default | meaning |{' types |' if types else ''}"
        yield f"|---|---|---|---|{'---|' if types else ''}"
    for row, kinds in rows.items():
        of = f" {'all' if len(kinds) == len(types) else ', '.join(kinds)} |" if types else ""
        yield f"| `{row.name}` | {_cell(row.allowed)} | {_cell(row.default)} | {_cell(row.meaning)} |{of}"
    if rows:
        yield ""
    for inner, child in _tables(node, types):
        yield from _section(child, (*key, *inner), described)


def _rows(node: Node, types: list[str]) -> dict[Row, list[str]]:
    """Return the keys that hold values, each with the types that have it so."""
    rows: dict[Row, list[str]] = {}
    for kind in types or [""]:
        for name, child in keys_of(node, {"type": kind}).items():
            if name == "type" and types:
                continue
            given = "default" in child and child["default"] is not None and not isinstance(child["default"], dict)
            default = f"`{toml_value(child['default'])}`" if given else ""
            allowed = describe(child) if not has_table(child) or len(branches(child)) > 1 else "a table"
            if has_table(child) and len(types_of(child)) > 1:
                allowed = "a table"
            rows.setdefault(Row(name, allowed, default, meaning_of(child)), []).append(kind)
    return rows


def _tables(node: Node, types: list[str]) -> Iterator[tuple[Key, Node]]:
    """Yield the tables in a table and in its lists, each once, with their keys."""
    seen: set[tuple[str, ...]] = set()
    for kind in types or [""]:
        for name, child in keys_of(node, {"type": kind}).items():
            lists = [branch["items"] for branch in branches(child) if isinstance(branch.get("items"), dict)]
            for key, inner in (((name,), child), *(((name, "*"), items) for items in lists)):
                known = (*key, *keys_of(inner))
                if keys_of(inner) and known not in seen:
                    seen.add(known)
                    yield key, inner


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
