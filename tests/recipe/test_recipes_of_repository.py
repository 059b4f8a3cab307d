"""Every recipe of the repository is right in every mode, and those that state a result can be run shortened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import trainer
from places import ROOT
from published import look_up

from trainkit.data.documents.templates import RowReading, needed_keys
from trainkit.errors import WRONG_INPUT
from trainkit.events.tail import read
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.modes import BUILT_IN, FULL

RECIPES = sorted(ROOT.glob("recipes/**/*.toml"))
TOYS = [path for path in RECIPES if 'type = "toy"' in path.read_text()]
#: Those that state what they reach, as scripts/run_recipes.py reads them.
RESULT = re.compile(r"^# result: (\S+)", re.MULTILINE)
OFFLINE = [path for path in RECIPES if RESULT.search(path.read_text())]
#: Even less than the mode `sanity`: what is tested is that the parts fit.
SMALL = [
    argument
    for setting in ("train.steps=2", "train.batch_size=4", "train.micro_batch_size=4", "evaluate.max_batches=1")
    for argument in ("--set", setting)
]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_right_in_every_mode_and_opens_with_its_command(path):
    for mode in (FULL, *BUILT_IN):
        load(path, mode=mode, look_up=look_up)
    assert f"trainkit run {path.relative_to(ROOT)}" in path.read_text()


@pytest.mark.parametrize("path", OFFLINE, ids=lambda path: path.stem)
def test_a_recipe_that_needs_no_network_runs_shortened_from_any_directory_and_reports_its_result(tmp_path, path):
    layers = ("--set", "model.layers=1") * ("layers" in load(path).recipe.model.model_fields_set)
    result = trainer.trainkit(tmp_path, "run", str(path), "--mode", "sanity", "--name", "a", "--plain", *SMALL, *layers)
    assert result.returncode == 0, result.stderr
    evaluated = [event for event in read(tmp_path / "runs" / "a") if event["type"] == "evaluated"]
    assert Path(metric_of(path)).name in {Path(name).name for name in evaluated[-1]["metrics"]}


def test_the_split_for_tests_of_a_shortened_recipe_is_evaluated_at_its_best_checkpoint(tmp_path):
    path = ROOT / "recipes" / "classify.toml"
    small = (*SMALL, "--set", "model.layers=1")
    result = trainer.trainkit(tmp_path, "run", str(path), "--mode", "sanity", "--plain", *small)
    assert result.returncode == 0, result.stderr
    small = ("--set", "evaluate.max_batches=1")
    result = trainer.trainkit(tmp_path, "eval", "classify-sanity/best", "--split", "test", "--json", *small)
    assert metric_of(path) in json.loads(result.stdout)["metrics"]["test"], result.stderr
    result = trainer.trainkit(tmp_path, "eval", "classify-sanity", "--split", "tset")
    assert result.returncode == WRONG_INPUT and "'train', 'dev' or 'test'" in result.stderr


@pytest.mark.parametrize("path", TOYS, ids=lambda path: path.stem)
def test_toy_rows_have_the_keys_that_the_recipe_names_and_no_row_of_training_is_in_another_split(path):
    source = load(path).recipe.data.train[0]
    train, *others = (
        list(source.model_copy(update={"split": split, "count": 20}).rows()) for split in ("train", "dev", "test")
    )
    assert all(len(rows) == 20 and not [row for row in rows if row in train] for rows in others)
    assert all(set(needed_keys(RowReading(document=source.document)) or ()) <= row.keys() for row in train)


def metric_of(path):
    """Return the name of the metric whose value a recipe states."""
    stated = RESULT.search(path.read_text())
    assert stated is not None
    return stated[1]
