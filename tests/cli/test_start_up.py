"""What each command loads. Counted in modules, since seconds depend on the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import get_args

import pytest
from imports import HEAVY, command, loaded
from sample_recipe import write
from trainer import BARE, losses, workplace

from trainkit import cli
from trainkit.recipe.optimizers.spec import Optimizer
from trainkit.recipe.optimizers.wrapper_spec import Wrapper
from trainkit.recipe.sections.document_spec import Document
from trainkit.recipe.sections.metric_spec import Metric
from trainkit.recipe.sections.model import Model
from trainkit.recipe.sections.schedule_spec import Schedule
from trainkit.recipe.sections.task import Task

ROOT = Path(__file__).parents[2]
#: Code after which no distribution named trainkit can be found, as where it is only on the path.
NOT_INSTALLED = """
import importlib.metadata as metadata
found = metadata.Distribution.from_name.__func__
def from_name(cls, name):
    if name == "trainkit":
        raise metadata.PackageNotFoundError(name)
    return found(cls, name)
metadata.Distribution.from_name = classmethod(from_name)
"""


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


def test_check_imports_no_spec_that_the_recipe_does_not_name(tmp_path):
    unions = [(Model, "gpt2"), (Optimizer, "muon"), (Schedule, "cosine"), (Task, "causal-lm")]
    named, other = set(), set()
    for union, name in [*unions, (Document, ""), (Metric, ""), (Wrapper, "")]:
        one_of = get_args(union)[1]
        files = [part.partition(":")[0] for part in one_of.parts if isinstance(part, str)]
        own = [one_of.find(name).__module__] if name else []
        before = files[: files.index(own[0])] if union is Optimizer else []  # to find a type, they are read in order
        named |= {*own, *before}
        other |= set(files)
    code = command("check", str(ROOT / "recipes/quickstart.toml"))
    assert len(other - named) > 25
    loaded(f"{code}\nfound = {other - named} & sys.modules.keys()\nassert not found, found", tmp_path)


def test_a_recipe_that_is_right_needs_no_diagnosis(tmp_path):
    code = command("check", str(write(tmp_path))) + "\nassert 'trainkit.recipe.toml.diagnosis' not in sys.modules"
    loaded(code, tmp_path)


def test_an_attempt_writes_its_first_events_before_it_imports_jax(tmp_path):
    assert not loaded("import trainkit.run.attempt", tmp_path) & HEAVY


def test_the_event_log_needs_only_the_standard_library(tmp_path):
    bare = loaded("", tmp_path)
    assert loaded("import trainkit.events.log", tmp_path) - bare <= sys.stdlib_module_names | {"trainkit"}


@pytest.mark.parametrize(("before", "threads"), [(None, 1), ("3", 3)])
def test_openblas_has_one_thread_unless_the_user_says_otherwise(monkeypatch, before, threads):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", before or "")
    if before is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setattr(cli, "_run", lambda: int(os.environ["OPENBLAS_NUM_THREADS"]))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == threads


def test_a_run_from_a_checkout_needs_neither_the_dashboard_nor_aim_nor_datasets(tmp_path, monkeypatch):
    unused = ["textual", "textual_image", "aim", "aimrocks", "datasets", "pyarrow", "wandb", "tensorboardX"]
    missing = f"import sys\nsys.modules.update(dict.fromkeys({unused!r}))\n"  # to import one is an ImportError
    missing += NOT_INSTALLED
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    workplace(tmp_path, BARE.replace("steps = 24", "steps = 2"))
    loaded(missing + command("run", "tiny.toml", "--plain"), tmp_path)
    assert sorted(losses(tmp_path / "runs" / "tiny")) == [1, 2]
