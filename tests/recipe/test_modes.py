"""A mode of a recipe is put over the file and under `--set`; every mode of a recipe is checked."""

from __future__ import annotations

import pytest
import tomli
from sample_recipe import changed, line_of, write

from trainkit.errors import TrainkitError
from trainkit.recipe.toml import modes
from trainkit.recipe.toml.load import load, load_resolved
from trainkit.recipe.toml.values import dumps

MODES = """
[mode.toy]
train.epochs = 0.5
data.train.0.limit = 3
[mode.llama]
model = { hidden = 16, heads = 2, intermediate = 8, type = "llama", layers = 1 }
"""
TEXT = changed() + MODES


def test_a_mode_wins_over_the_file_and_set_wins_over_the_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, TEXT)
    full, toy = load(path), load(path, ["data.train.0.limit=5"], mode="toy")
    assert (full.recipe.train.steps, full.recipe.train.epochs) == (20, None)
    assert (toy.recipe.train.steps, toy.recipe.train.epochs) == (None, 0.5)
    assert full.recipe.data.train[0].limit is None and toy.recipe.data.train[0].limit == 5
    assert toy.origins["train.epochs"] == f"mode toy (sample.toml:{line_of(TEXT, 'train.epochs')})"
    assert toy.origins["data.train.0.limit"].startswith("--set")


def test_a_value_set_for_one_mode_need_not_fit_another(tmp_path):
    path = write(tmp_path, TEXT)
    assert load(path, ["model.embedding_dropout=0.1"]).recipe.model.type == "gpt2"
    with pytest.raises(TrainkitError):
        load(path, ["model.embedding_dropout=0.1"], mode="llama")


def test_a_mode_that_changes_a_type_drops_the_keys_of_the_old_one(tmp_path):
    path = write(tmp_path, TEXT.replace("heads = 4", "heads = 4\ntied = false"))
    model = load(path, mode="llama").recipe.model
    assert (model.type, model.hidden, model.layers, model.heads) == ("llama", 16, 1, 2)


def test_every_recipe_has_the_modes_toy_and_sanity(tmp_path):
    path = write(tmp_path, changed(("steps = 20", "steps = 700"), ("every = 10", "every = 50")))
    toy, sanity = load(path, mode="toy").recipe, load(path, mode="sanity").recipe
    assert (toy.train.steps, toy.evaluate.every, toy.run.name) == (70, 5, "sample-toy")
    assert (sanity.train.steps, sanity.evaluate.every, sanity.run.name) == (20, 20, "sample-sanity")
    assert load(path, ["run.name=mine"], mode="toy").recipe.run.name == "mine"
    path.write_text(changed(("every = 10", "every = 50\nmax_batches = 2")))
    assert load(path, mode="sanity").recipe.evaluate.max_batches == 2, "no mode makes a run longer"


def test_a_shorter_run_has_a_schedule_that_is_shorter_in_proportion(tmp_path):
    lines = (("warmup = 0.02", "warmup = 200"), ('type = "cosine"', 'type = "wsd"'), ("min_ratio = 0.1", "decay = 300"))
    path = write(tmp_path, changed(("steps = 20", "steps = 1000"), *lines))
    for mode in ("toy", "sanity"):
        loaded = load(path, mode=mode)
        steps = loaded.recipe.train.steps
        assert (loaded.recipe.schedule.warmup, loaded.recipe.schedule.decay) == (0.2, 0.3)
        assert loaded.recipe.schedule.warmup_steps(steps) == steps // 5
    path.write_text(changed(("steps = 20", "epochs = 3"), *lines))
    assert load(path, mode="toy").recipe.schedule.warmup == 20, "the epochs are divided by 10 too"
    assert load(path, mode="sanity").recipe.schedule.warmup == 200, "nobody knows the share of this run"


def test_a_shorter_run_has_stages_and_points_that_come_sooner_in_proportion(tmp_path):
    table = """[schedules]
batch_size = [[0, 2], [300, 4], [305, 8]]
mixture = { a = [[0, 1.0], [500, 0.5]] }
[schedules.momentum]
type = "piecewise-linear"
points = [[0, 0.5], [400, 1.0]]
[schedules.beta2]
type = "linear"
warmup = 100
[optimizer]"""
    source = 'type = "python-stdlib"\nname = "a"\nweight = 1.0'
    lines = (("steps = 20", "steps = 1000"), ("[optimizer]", table), ('type = "python-stdlib"', source))
    path = write(tmp_path, changed(*lines))
    for mode, stages, end, point in (
        ("toy", ((0, 2), (30, 4), (31, 8)), 50, 40), ("sanity", ((0, 2), (6, 4), (7, 8)), 10, 8)
    ):  # fmt: skip
        schedules = load(path, mode=mode).recipe.schedules
        assert schedules.batch_size == stages and schedules.mixture["a"][1] == (end, 0.5)
        assert schedules.momentum.points == ((0, 0.5), (point, 1.0)) and schedules.beta2.warmup == 0.1


def test_what_a_shorter_run_does_not_change_keeps_the_place_where_it_was_written(tmp_path):
    table = 'batch_size = [[0, 8]]\nmomentum = { type = "piecewise-linear", points = [[0, 0.5]] }'
    loaded = load(write(tmp_path, changed(("[optimizer]", f"[schedules]\n{table}\n[optimizer]"))), mode="toy")
    for key in ("batch_size", "momentum.points"):
        assert "sample.toml" in loaded.origins[f"schedules.{key}"]


def test_the_recipe_of_a_run_records_what_a_mode_gave(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy = load(write(tmp_path, TEXT), mode="toy")
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(dumps(toy.recipe, toy.origins, toy.path))
    again = load_resolved(resolved)
    assert again.recipe == toy.recipe
    assert again.origins["train.epochs"] == toy.origins["train.epochs"]
    assert again.origins["run.name"] == "mode toy"


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        ("[mode.late]\ntrain.stepz = 3", "train.stepz = 3: no such key"),
        ("[mode.late]\ntrain.steps = 0", "train.steps = 0: expected a whole number from 1 to 1,000,000,000"),
        ("[mode.late]\ndata.train.1.limit = 3", "data.train is a list of 1; it has no index '1'"),
        ("[mode.full]\ntrain.steps = 3", "'full' is the recipe as it is written"),
        ("[mode]\ntoy = 3", "mode.toy is not a table"),
    ],
)
def test_a_mistake_in_any_mode_is_found_with_its_file_and_line(tmp_path, monkeypatch, mistake, problem):
    monkeypatch.chdir(tmp_path)
    text = f"{changed()}\n{mistake}\n"
    line = line_of(text, mistake.splitlines()[0 if "mode.full" in mistake else 1])
    with pytest.raises(TrainkitError) as found:
        load(write(tmp_path, text))
    assert found.value.problem == problem and f"sample.toml:{line}" in found.value.where


def test_a_mode_that_the_recipe_does_not_have_is_refused_with_those_it_has(tmp_path):
    path = write(tmp_path, TEXT)
    with pytest.raises(TrainkitError, match="has no mode 'tyo'") as found:
        load(path, mode="tyo")
    assert found.value.hint == "did you mean toy?"
    with pytest.raises(TrainkitError) as found:
        load(path, mode="quickest")
    assert found.value.hint == "its modes are full, toy, sanity, llama"


@pytest.mark.parametrize(
    ("given", "shortened"), [("", None), ("{ beams = 2 }", 8), ("{ max_items = 3 }", 3), ("{ max_items = 500 }", 8)]
)
def test_sanity_writes_few_texts_where_the_recipe_writes_any(tmp_path, given, shortened):
    table = {"train": {}, "evaluate": {"every": 10}}
    if given:
        table["evaluate"]["generate"] = tomli.loads(f"x = {given}")["x"]
    changes = modes._built_in("sanity", table, tmp_path / "sample.toml")
    assert changes["evaluate"].get("generate", {}).get("max_items") == shortened
