"""No key of a recipe is accepted and ignored: it has an effect, or is refused with what to do."""

from __future__ import annotations

import ast
import hashlib
from typing import Any

import data_room as room
import numpy as np
import pytest
from places import ROOT
from sample_recipe import changed, line_of, write

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.sources.listing import list_files
from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Files, Tokens
from trainkit.recipe.toml import schema
from trainkit.recipe.toml.load import load, load_resolved

SOURCE = 'type = "python-stdlib"'
ENCODING = '[data.encoding]\ntype = "windows"\nstride = 65\n'
VALIDATION = '[[data.validation]]\npath = "b.txt"\nweight = 2.0\n'
DOCUMENT = 'path = "a.jsonl"\ntext_key = "body"\ndocument = { type = "template", template = "{a}" }'
IMAGE = 'path = "a.jsonl"\nmin_characters = 3\ndocument = { type = "image" }'
COLUMNS = 'path = "a.csv"\ndocument = { type = "columns", features = ["x"], target = "y" }'
PACKED = '[data.encoding]\ntype = "pack"\n'
CLASSES = 'path = "a.jsonl"\ndocument = { type = "image", label = false, classes = ["a"] }'


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (changed() + VALIDATION, "weight = 2.0", "data.validation.0.weight has no effect"),
        (
            changed((SOURCE, f'{SOURCE}\nname = "library"')),
            'name = "library"',
            'data.train.0.name = "library" is not used',
        ),
        (changed() + ENCODING, "stride", "data.encoding.stride = 65 would skip"),
        (changed((SOURCE, DOCUMENT)), "text_key", "text_key has no effect beside document"),
        (changed((SOURCE, IMAGE)), "min_characters", "min_characters is for texts"),
        (changed((SOURCE, CLASSES)), "classes", "classes names labels"),
        (changed((SOURCE, COLUMNS)) + PACKED, "[data.encoding]", "data.encoding divides texts into examples"),
    ],
)
def test_a_key_that_nothing_reads_is_refused_at_its_line_with_what_to_do(tmp_path, monkeypatch, text, line, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, text))
    assert found.value.where == f"sample.toml:{line_of(text, line)}"
    assert told in found.value.problem and any(
        fix in str(found.value) for fix in ("remove", "leave", "make it at most")
    )


@pytest.mark.parametrize(("key", "saved"), [("revision", False), ("revision", True), ("config", True)])
def test_what_only_the_hub_has_is_refused_of_a_dataset_in_a_directory(tmp_path, monkeypatch, key, saved):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    if saved:
        (tmp_path / "set/state.json").touch()
    text = changed((SOURCE, f'type = "huggingface"\nid = "set"\n{key} = "main"'))
    with pytest.raises(TrainkitError, match=f"data.train.0.{key} is for hub ids") as found:
        load(write(tmp_path, text))
    assert found.value.where == f"sample.toml:{line_of(text, f'{key} = ')}"


def test_a_key_of_other_files_than_those_that_are_there_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    np.save(tmp_path / "a.npy", np.arange(3))
    for source, told in (
        (Files(path=str(tmp_path / "a.txt"), text_key="body"), "text_key is for"),
        (Tokens(type="tokens", path=str(tmp_path / "a.npy"), dtype="int32"), "dtype is for .bin"),
        (Tokens(type="tokens", path=str(tmp_path / "a.npy"), tokens_key="ids"), "tokens_key is for .parquet"),
    ):
        with pytest.raises(TrainkitError, match=told):
            list_files(source, tmp_path)


NO_SETS = (("held_out = 0.1", ""), ("[evaluate]\nevery = 10", "[evaluate]\nmax_batches = 3"))
FROZEN = '[[optimizer.groups]]\nmatch = "blocks.*"\nlearning_rate_factor = 0.0\nweight_decay = 0.1\n'
USELESS = [
    (changed(("held_out = 0.1", "")), "every = 10", "evaluate.every", "data.held_out"),
    (changed(*NO_SETS), "max_batches", "evaluate.max_batches", "data.held_out"),
    (changed(("[sample]", "[sample]\ntop_k = 5\ntemperature = 0.0")), "top_k", "sample.top_k", "temperature"),
    (changed(("[sample]", "[sample]\ntemperature = 0.0\ntop_p = 0.5")), "top_p", "sample.top_p", "temperature"),
    (changed(("[sample]", "[sample]\ntemperature = 0.0\nmin_p = 0.5")), "min_p", "sample.min_p", "temperature"),
    (changed() + '[precision]\nrounding = "nearest"\n', "rounding", "precision.rounding", "bfloat16"),
    (changed() + FROZEN, "weight_decay = 0.1", "optimizer.groups.0.weight_decay", "factor above 0"),
    (changed() + "[checkpoint]\nkeep_every = [5, 30]\n", "keep_every", "checkpoint.keep_every", "only steps up to 20"),
    (changed() + '[adapter]\n[precision]\nrounding = "nearest"\n', "rounding", "precision.rounding", "leave it out"),
]


@pytest.mark.parametrize(("text", "line", "key", "fix"), USELESS, ids=[key for _, _, key, _ in USELESS])
def test_a_key_that_another_value_makes_useless_is_refused_at_its_line(tmp_path, monkeypatch, text, line, key, fix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainkitError, match=f"{key} has no effect: ") as found:
        load(write(tmp_path, text))
    assert found.value.where == f"sample.toml:{line_of(text, line)}"
    assert "leave it out" in found.value.hint and fix in found.value.hint


def test_a_key_is_not_refused_where_something_written_over_it_makes_it_useless(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, changed(("[sample]", "[sample]\ntop_k = 5")))
    greedy = ["sample.temperature=0.0"]
    assert load(path, greedy).recipe.sample.temperature == 0
    child = write(tmp_path, 'extends = ["sample.toml"]\n[sample]\ntemperature = 0.0\n', "child.toml")
    assert load(child).recipe.sample.temperature == 0
    load(path, ["data.held_out=0.0"])
    with pytest.raises(TrainkitError, match=r"sample\.top_p has no effect") as found:
        load(path, [*greedy, "sample.top_p=0.5"])
    assert found.value.where == "--set sample.top_p"


def test_the_recipe_of_an_old_run_may_hold_useless_keys_but_none_may_be_added_with_set(tmp_path):
    path = write(tmp_path, changed(("held_out = 0.1", "")))
    assert load_resolved(path).recipe.evaluate.every == 10
    with pytest.raises(TrainkitError, match=r"evaluate\.max_batches has no effect"):
        load_resolved(path, ["evaluate.max_batches=3"])


def test_the_weight_decay_of_a_frozen_group_is_refused_unless_a_later_group_unfreezes_parameters(tmp_path):
    thawed = '[[optimizer.groups]]\nmatch = "blocks.attention*"\nlearning_rate_factor = 1.0\n'
    rule = FROZEN + 'optimizer = { type = "adamw", learning_rate = 3e-4 }\n'
    load(write(tmp_path, changed() + rule + thawed))
    with pytest.raises(TrainkitError, match=r"optimizer\.groups\.1\.weight_decay has no effect"):
        load(write(tmp_path, changed() + thawed + rule))


def test_the_repository_of_aim_may_be_given_without_aim_since_a_run_can_be_copied_to_it_later(tmp_path):
    load(write(tmp_path, changed(("aim = false", 'aim = false\nrepository = "there"\nexperiment = "one"'))))


def test_all_useless_keys_are_reported_together(tmp_path):
    text = changed(("[sample]", "[sample]\ntop_k = 5\ntemperature = 0.0"), *NO_SETS)
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, text))
    assert "sample.top_k has no effect" in found.value.problem and "evaluate.max_batches has" in found.value.problem


def test_every_key_of_the_language_is_read_somewhere():
    root = ROOT / "trainkit"
    nodes = [n for path in root.rglob("*.py") for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    read |= {name for node in nodes if isinstance(node, ast.MatchClass) for name in node.kwd_attrs}
    sections = [schema.schema(), *schema.schema()["$defs"].values()]
    defined = {name for section in sections for name in section.get("properties", {})}
    # `load` takes the first two itself; trackers are asked for by their names; chat templates read a message's role
    assert defined - read - {"schema", "extends", "tensorboard", "role"} == set()


BASE: dict[str, Any] = {"sequence_length": 16, "seed": 0}
TEXTS = {"format": "jsonl"}
CHANGES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # what is there before, what is changed of the data, and what of the source
    ({}, {"sequence_length": 12}, {}),
    ({}, {"seed": 1}, {}),
    ({}, {"batch_size": 3}, {}),
    ({}, {"held_out": 0.2}, {}),
    ({}, {"shuffle": False}, {}),
    ({}, {"shuffle": {"window": 3}}, {}),
    ({}, {"encoding": {"eos": False}}, {}),
    ({}, {"encoding": {"separate": True}}, {}),
    ({}, {"encoding": {"type": "windows"}}, {}),
    ({"encoding": {"type": "windows"}}, {"encoding": {"type": "windows", "stride": 5}}, {}),
    ({"encoding": {"type": "windows"}}, {"encoding": {"type": "windows", "min_length": 9}}, {}),
    ({}, {"encoding": {"type": "pack"}}, {}),
    ({"encoding": {"type": "pack"}}, {"encoding": {"type": "pack", "too_long": "split"}}, {}),
    ({"encoding": {"type": "pack"}}, {"encoding": {"type": "pack", "too_long": "drop"}}, {}),
    ({"encoding": {"type": "pack"}}, {"encoding": {"type": "pack", "min_length": 9}}, {}),
    ({"encoding": {"type": "pad"}}, {"encoding": {"type": "pad", "buckets": (8,)}}, {}),
    ({"encoding": {"type": "pad"}}, {"encoding": {"type": "pad", "too_long": "split"}}, {}),
    ({"encoding": {"type": "pad"}}, {"encoding": {"type": "pad", "min_length": 9}}, {}),
    ({}, {}, {"limit": 20}),
    ({}, {}, {"text_key": "body"}),
    ({}, {}, {"min_characters": 30}),
    ({}, {}, {"max_characters": 30}),
    ({}, {}, {"document": {"type": "template", "template": "{body}"}}),
    ({}, {}, {"document": {"type": "prompt", "prompt": "{body}", "response": "{text}"}}),
]


@pytest.mark.parametrize(("before", "data", "source"), CHANGES, ids=str)
def test_every_key_of_the_data_changes_the_batches(tmp_path, before, data, source):
    rows = ({"text": room.text(i, 1 + i % 9), "body": room.text(i + 99, 3)} for i in range(60))
    path = {"path": str(room.write_rows(tmp_path / "a.jsonl", rows))}
    one = _seen(room.recipe(tmp_path, path, **(BASE | before)))
    other = _seen(room.recipe(tmp_path, path | source, **(BASE | before | data)))
    assert one != other


def _seen(recipe: Recipe) -> str:
    """A hash of the first batches."""
    found = TrainSet(caches.build(recipe), recipe)
    arrays = (array for step in range(12) for _, array in sorted(found.batch(step).items()))
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
