"""What each command loads. Counted in modules, since seconds depend on the machine."""

from __future__ import annotations

import sys

import pytest
from imports import HEAVY, command, loaded
from sample_recipe import write


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"]], ids=["--help", "--version", "run --help"]
)
def test_help_loads_nothing_heavy(tmp_path, arguments):
    modules = loaded(command(*arguments), tmp_path)
    assert "typer" in modules
    assert not modules & HEAVY and "tomli" not in modules


@pytest.mark.parametrize("arguments", [["check"], ["explain", "train"]], ids=["check", "explain"])
def test_check_and_explain_load_nothing_that_trains(tmp_path, arguments):
    name, *rest = arguments
    modules = loaded(command(name, str(write(tmp_path)), *rest), tmp_path)
    assert {"pydantic", "tomli"} <= modules
    assert not modules & HEAVY


def test_a_recipe_that_is_right_needs_no_diagnosis(tmp_path):
    code = command("check", str(write(tmp_path))) + "\nassert 'trainkit.recipe.toml.diagnosis' not in sys.modules"
    loaded(code, tmp_path)


def test_the_event_log_needs_only_the_standard_library(tmp_path):
    bare = loaded("", tmp_path)
    assert loaded("import trainkit.events.log", tmp_path) - bare <= sys.stdlib_module_names | {"trainkit"}
