"""Every recipe of the repository is right in every mode, and those that state a result can be run shortened."""

from __future__ import annotations

import json
import re

import pytest
import trainer
from places import ROOT
from published import look_up

from trainkit.data.documents.templates import RowReading, needed_keys
from trainkit.errors import WRONG_INPUT
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.modes import BUILT_IN, FULL

RECIPES = sorted(ROOT.glob("recipes/**/*.toml"))
TOYS = [path for path in RECIPES if 'type = "toy"' in path.read_text()]
#: Even less than the mode `sanity`: what is tested is that the parts fit.
SMALL = [
    argument
    for setting in ("train.steps=2", "train.batch_size=4", "train.micro_batch_size=4", "model.layers=1")
    for argument in ("--set", setting)
]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_right_in_every_mode_and_opens_with_its_command(path):
    for mode in (FULL, *BUILT_IN):
        load(path, mode=mode, look_up=look_up)
    assert f"trainkit run {path.relative_to(ROOT)}" in path.read_text()


def test_a_recipe_that_needs_no_network_runs_shortened_from_any_directory_and_reports_its_test_split(tmp_path):
    path = ROOT / "recipes" / "classify.toml"
    metric = re.search(r"^# result: (\S+)", path.read_text(), re.MULTILINE)
    result = trainer.trainkit(tmp_path, "run", str(path), "--mode", "sanity", "--plain", *SMALL)
    assert result.returncode == 0, result.stderr
    small = ("--set", "evaluate.max_batches=1")
    result = trainer.trainkit(tmp_path, "eval", "classify-sanity/best", "--split", "test", "--json", *small)
    assert metric is not None and metric[1] in json.loads(result.stdout)["metrics"]["test"], result.stderr
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
