"""A wrong value or a shortened key, at any place of the recipe language, is answered with what the language allows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli
from sample_recipe import TEXT, write

from trainkit.errors import TrainkitError
from trainkit.recipe.toml import schema
from trainkit.recipe.toml.alias_families import FAMILIES
from trainkit.recipe.toml.aliases import ALIASES, SECTION_ALIASES
from trainkit.recipe.toml.corrections import correction
from trainkit.recipe.toml.kinds import accepts
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.positions import Key
from trainkit.recipe.toml.suggestions import MOST_NEAR, suggest
from trainkit.recipe.toml.value_aliases import pattern_of

#: What people write where a table belongs.
PLAIN: tuple[Any, ...] = ("fp16", "x", 3, 0.5, True, ["a"])


def tables(node: schema.Node, key: Key, seen: set[str]) -> Iterator[tuple[Key, schema.Node]]:
    """Yield every table below a key, in all its types, with its key; one that stands in several places once."""
    for branch in schema.branches(node):
        for name, child in branch.get("properties", {}).items():
            entry = schema.entry_of(child)
            below = entry if entry and schema.has_table(entry) else child
            same = f"{name} {sorted(schema.every_key(below))}"
            if schema.every_key(below) and same not in seen:
                seen.add(same)
                found = (*key, name) if below is child else (*key, name, 0)
                yield found, below
                yield from tables(below, found, seen)


@cache
def all_tables() -> list[tuple[Key, schema.Node]]:
    found = list(tables(schema.root(), (), set()))
    assert len(found) > 40
    return found


def test_a_value_in_the_place_of_any_table_is_answered_with_a_key_of_it_and_a_value_that_it_allows() -> None:
    for key, node in all_tables():
        for value in PLAIN:
            if accepts(node, value):
                continue
            hint = correction(key, value, node, schema.choices(node), as_override=True)
            if hint.startswith("did you mean") and schema.choices(node):
                continue  # a word that may stand in place of the table
            written = re.search(r"write (?:its keys, such as )?(--set .*?)(?:; type = .*)?$", hint)
            assert written, (key, value, hint)
            assert fits(node, value_at(key, shlex.split(written[1])[1])), (key, value, hint)


def value_at(key: Key, override: str) -> Any:
    """Return what an override puts in the place of a key: a table of what it gives."""
    name, _, text = override.partition("=")
    at = name.split(".")
    assert [str(part) for part in key[: len(at)]] == at[: len(key)], (key, override)
    try:
        value = tomli.loads(f"v = {text}")["v"]
    except tomli.TOMLDecodeError:
        value = text
    for part in key[len(at) :]:
        value = value[part]
    for part in reversed(at[len(key) :]):
        value = {part: value}
    return value


def fits(node: schema.Node, value: Any) -> bool:
    """Return whether a node allows a value, tables in any of their types."""
    if isinstance(value, dict):
        found = [branch["properties"] for branch in schema.branches(node) if "properties" in branch]
        return any(name in keys and fits(keys[name], inner) for keys in found for name, inner in value.items())
    if isinstance(value, list) and schema.has_table(schema.entry_of(node)):
        return all(fits(schema.entry_of(node), inner) for inner in value)
    return accepts(node, value)


@pytest.mark.parametrize("value", ["fp16", "3", "true"])
def test_what_is_suggested_in_the_place_of_a_section_works_as_an_override(tmp_path: Path, value: str) -> None:
    path = write(tmp_path)
    sections = [name for name, node in schema.keys_of(schema.root()).items() if schema.has_table(node)]
    assert len(sections) > 20
    for section in sections:
        if section == "mode":
            continue  # no key of a recipe
        said = refused(path, f"{section}={value}")
        hint = said.partition("hint: ")[2].split("\n")[0]
        written = re.search(r"(--set .*?)(?:; type = .*)?$", hint)
        assert written, (section, said)
        override = shlex.split(written[1])[1]
        again = refused(path, override)
        name = override.partition("=")[0]
        assert f"--set {name}: {name} = " not in again and "no such key" not in again, (override, again)


def refused(path: Path, override: str) -> str:
    """Return what is wrong with the sample recipe with an override; empty if nothing is."""
    try:
        load(path, [override])
    except TrainkitError as error:
        return str(error)
    return ""


def test_a_section_written_as_a_key_of_another_one_is_one_mistake_with_what_to_write(tmp_path: Path) -> None:
    path = write(tmp_path)
    for section, value, meant in (
        ("precision", "fp16", "precision.compute=float16"),
        ("precision", "16", "precision.compute=float16"),
        ("optimizer", "lion", "optimizer.type=lion"),
        ("schedule", "linear", "schedule.type=linear"),
        ("statistics", "5", "statistics.every=5"),
        ("adapter", "16", "adapter.rank=16"),
        ("tokenizer", "8000", "tokenizer.train.vocab_size=8000"),
    ):
        for other in {"train", "model", "data"} - {section}:
            said = refused(path, f"{other}.{section}={value}")
            assert said.endswith(f"--set {meant}") and "mistakes" not in said, said


def test_a_checkpoint_in_the_place_of_model_needs_no_sizes_beside_it(tmp_path: Path) -> None:
    lines = [line for line in TEXT.splitlines() if not re.match(r"type = .gpt2|(layers|hidden|heads) = ", line)]
    text = "\n".join(line for line in lines if line != "[model]")
    with pytest.raises(TrainkitError) as raised:
        load(write(tmp_path, f'model = "llama"\n{text}'))
    with_pretrained = 'write [model] with pretrained = "llama"'
    assert f'{with_pretrained}; type = "llama" instead starts from random weights' in str(raised.value)


def test_the_beginning_of_a_key_stands_for_it_in_every_table() -> None:
    everywhere = {str(path[-1]) for path in schema.leaves()}
    tried = 0
    for key, node in [((), schema.root()), *all_tables()]:
        local = SECTION_ALIASES.get(pattern_of(key), {})
        for kind in schema.types_of(node) or [""]:
            known = schema.keys_of(node, {"type": kind})
            in_lists = {name for inner in known.values() for name in schema.every_key(schema.entry_of(inner))}
            # longer beginnings are easier
            for begin in {name[:length] for name in known for length in (2, 3) if length < len(name)}:
                others = [other for other in known if other.startswith(begin)]
                means_more = begin in everywhere | ALIASES.keys() | local.keys() | in_lists
                if len(others) > MOST_NEAR or means_more or begin.endswith("_"):
                    continue
                hint = suggest(begin, key, known).hint
                assert hint == f"did you mean {' or '.join(others)}?", (key, begin)
                tried += 1
    assert tried > 500


def test_what_a_note_on_the_key_of_another_trainer_says_to_write_is_allowed_there() -> None:
    nodes: dict[str, list[schema.Node]] = {}
    for _, table in [((), schema.root()), *all_tables()]:
        for branch in schema.branches(table):
            for name, node in branch.get("properties", {}).items():
                nodes.setdefault(name, []).append(node)
    known = {".".join(map(str, key)) for key in schema.leaves()}
    known |= {
        f"data.train.0.{name}"
        for key, node in all_tables()
        if key == ("data", "train", 0)
        for name in schema.every_key(node)
    }
    tried = 0
    for alias in {*ALIASES.values(), *(meant for _, meant in FAMILIES)}:
        assert not alias.key or alias.key in known, alias
        for name, text in re.findall(
            r'(\w+) = (\{[^{}]*(?:\{\w+\}[^{}]*)*\}|\[[^\]]*\]|"[^"]*"|[\d.]+|true|false)', alias.note
        ):
            if name in nodes and "…" not in text:
                value = tomli.loads(f"v = {text}")["v"]
                assert any(fits(node, value) for node in nodes[name]), (alias, name, value)
                tried += 1
    assert tried > 40


def test_a_number_beyond_a_range_is_told_the_range_however_it_is_written() -> None:
    tried = 0
    for _, node in [((), schema.root()), *all_tables()]:
        for name, child in [pair for branch in schema.branches(node) for pair in branch.get("properties", {}).items()]:
            kinds = {branch.get("type") for branch in schema.branches(child)}
            if kinds != {"integer"} or schema.choices(child):
                continue
            for value in (1e20, "1e20", "999999999999999999999", "10000000T"):
                hint = correction((name,), value, child, [])
                assert re.match(f"{name} must be (at most|less than) ", hint), (name, value, hint)
                tried += 1
    assert tried > 100


def test_a_misspelt_key_in_the_place_of_tables_that_the_recipe_names_is_refused_in_words(tmp_path: Path) -> None:
    """[modes] has no key of its own that could be an example."""
    with pytest.raises(TrainkitError, match="mzode = 3"):
        load(write(tmp_path, f"mzode = 3\n{TEXT}"))


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("held_out = 10", "held_out = 0.1"),
        ('epochs = "1/2"', "epochs = 0.5"),
        ('learning_rate = "10^-4"', "learning_rate = 0.0001"),
        ('learning_rate = "2**-10"', "learning_rate = 0.0009765625"),
        ("betas = 0.9", "betas = [0.9, 0.95]"),
    ],
)
def test_a_percentage_a_fraction_a_power_and_one_number_of_a_list_are_told_what_to_write(
    line: str, written: str
) -> None:
    name, value = next(iter(tomli.loads(line).items()))
    key: Key = ({"held_out": "data", "epochs": "train"}.get(name, "optimizer"), name)
    section = schema.keys_of(schema.root())[str(key[0])]
    node = next(
        branch["properties"][name] for branch in schema.branches(section) if name in branch.get("properties", {})
    )
    assert correction(key, value, node, schema.choices(node)).endswith(f": {written}")
