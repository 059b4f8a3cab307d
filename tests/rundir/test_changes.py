"""What `trainkit resume` shows of learning rates that a changed recipe changes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from sample_recipe import changed, write

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import load
from trainkit.recipe.toml.values import differences
from trainkit.rundir.changes import compare_rates

FLAT = ('type = "cosine"\nwarmup = 0.02\nmin_ratio = 0.1', 'type = "constant"\nwarmup = 0')
GROUPS = '[[optimizer.groups]]\nmatch = "*embedding"\nlearning_rate_factor = 0.5\n'
ADAMW = ("learning_rate = 1e-3", "learning_rate = 1e-3")
MUON = ("learning_rate = 1e-3", 'type = "muon"\nlearning_rate = 0.02\nadamw = { learning_rate = 1e-3 }')
LORA = "[adapter]\nlearning_rate_ratio = 4.0\n"


def compared(directory: Path, text: str, *overrides: str, step: int = 10, raise_rate: bool = False) -> list[str]:
    path = write(directory, text)
    recipes: list[Recipe] = [load(path).recipe, load(path, overrides).recipe]
    return compare_rates(directory, *recipes, step, differences(*recipes), raise_rate=raise_rate)


@pytest.mark.parametrize(
    ("optimizer", "more", "override", "names", "rates"),
    [
        (ADAMW, GROUPS, "optimizer.groups.0.learning_rate_factor=0.25", "token_embedding", "0.0005 -> 0.00025"),
        (MUON, "", "optimizer.adamw.learning_rate=0.002", "token_embedding", "0.001 -> 0.002"),
        (ADAMW, LORA, "adapter.learning_rate_ratio=8.0", "attention", "0.004 -> 0.008"),
    ],
    ids=["group", "muon's adamw", "adapter"],
)
def test_the_rates_of_groups_inner_optimizers_and_adapters_are_compared_and_shown(
    tmp_path: Path, optimizer: tuple[str, str], more: str, override: str, names: str, rates: str
) -> None:
    (line,) = compared(tmp_path, changed(FLAT, optimizer) + more, override)
    assert line.startswith("learning rate after step 10 of ") and names in line and line.endswith(f": {rates}")


def test_the_rates_of_groups_follow_that_of_the_model_and_others_change_nothing(tmp_path: Path) -> None:
    text = changed(FLAT) + GROUPS
    first, second = compared(tmp_path, text, "optimizer.learning_rate=0.002")
    assert first == "learning rate after step 10: 0.001 -> 0.002" and second.endswith(": 0.0005 -> 0.001")
    assert compared(tmp_path, text, "optimizer.weight_decay=0.3") == []
    assert compared(tmp_path, text, "optimizer.learning_rate=0.002", step=0) == []


def test_a_schedule_that_raises_the_rates_of_muon_s_adamw_alone_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    text = changed(MUON)
    longer = ("train.steps=200", "optimizer.learning_rate=0.001")
    with pytest.raises(TrainkitError, match="raises the learning rate after step 19") as refused:
        compared(tmp_path, text, *longer, step=19)
    assert "--raise-rate" in refused.value.hint
    model, rest = compared(tmp_path, text, *longer, step=19, raise_rate=True)
    assert "token_embedding" in rest and model.startswith("learning rate after step 19: ")


PAD = ('type = "python-stdlib"', 'type = "python-stdlib"\n[data.encoding]\ntype = "pad"')


def plan(directory: Path, **counted: float) -> None:
    log = EventLog(directory, attempt=1)
    log.write("planned", step=0, plan={"steps": 20, **counted}, devices=[], total_steps=20)
    log.close()


@pytest.mark.parametrize(
    ("text", "length"),
    [(changed(), "train.epochs=8"), (changed(PAD), "train.tokens=40000")],
    ids=["epochs", "tokens of padded examples"],
)
def test_a_longer_run_raises_the_rate_in_whatever_unit_its_length_is_given(
    tmp_path: Path, text: str, length: str
) -> None:
    with pytest.raises(TrainkitError, match="may raise the learning rate after step 15: its number of steps is unk"):
        compared(tmp_path, text, length, step=15)
    assert compared(tmp_path, text, length, step=15, raise_rate=True) == []
    plan(tmp_path, epochs=2.0, total_tokens=10_000)
    rates = re.compile(r"raises the learning rate after step 15: (\S+ -> [^ ,]+)")
    with pytest.raises(TrainkitError, match=rates) as refused:
        compared(tmp_path, text, length, step=15)
    with pytest.raises(TrainkitError, match=rates) as as_steps:
        compared(tmp_path, text, "train.steps=80", step=15)
    assert refused.value.problem == as_steps.value.problem


@pytest.mark.parametrize(
    "text",
    [
        changed(),
        changed(MUON),
        changed(MUON)
        + '[[optimizer.groups]]\nmatch = "*.bias"\noptimizer = { type = "adamw", learning_rate = 3e-4 }\n',
    ],
    ids=["adamw", "muon", "muon and a group"],
)
def test_the_settings_that_are_said_to_keep_the_present_rate_do(tmp_path: Path, text: str) -> None:
    with pytest.raises(TrainkitError) as refused:
        compared(tmp_path, text, "train.steps=200", step=15)
    allow, keep = refused.value.hint.split("   or to keep the present rate: ")
    assert allow.endswith("--raise-rate")
    settings = [word for word in shlex.split(keep) if word != "--set"]
    for line in compared(tmp_path, text, "train.steps=200", *settings, step=15):
        before, after = line.rpartition(": ")[2].split(" -> ")
        assert float(after) == pytest.approx(float(before), rel=2e-3)


def test_where_no_settings_keep_the_present_rate_only_the_option_that_allows_the_rise_is_named(tmp_path: Path) -> None:
    ends_at_zero = ("min_ratio = 0.1", "min_ratio = 0.0")
    for text, *overrides, step in (
        (changed(ends_at_zero), "train.steps=200", 20),
        (changed() + GROUPS, "train.steps=200", "optimizer.groups.0.learning_rate_factor=3.0", 15),
    ):
        with pytest.raises(TrainkitError, match="raises the learning rate") as refused:
            compared(tmp_path, str(text), *map(str, overrides), step=int(step))
        assert refused.value.hint == "to allow it: --raise-rate"
