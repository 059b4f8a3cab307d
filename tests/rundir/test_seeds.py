"""Runs that differ in their seed: which belong together, and whether groups differ by more than noise."""

from __future__ import annotations

import math
from pathlib import Path

import fake_run
import pytest
from sample_recipe import write

from trainkit.cli.compare import compare
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.recipe.toml.load import load
from trainkit.rundir.directory import create
from trainkit.rundir.seeds import SeedGroup, groups_of, probability, quantile, welch

#: t, degrees of freedom and the probability of so large a |t|, from `2 * scipy.stats.t.sf(t, freedom)`.
STUDENT = [
    (0.1, 2, 0.9294654384141402),
    (2.0, 3.3, 0.1309588644394494),
    (5, 10, 0.0005373336027564527),
    (1.5, 100, 0.13676505812468884),
    (12, 1.2, 0.033858485641627266),
]


@pytest.mark.parametrize(("t", "freedom", "wanted"), STUDENT)
def test_the_probability_of_t_is_that_of_scipy(t: float, freedom: float, wanted: float) -> None:
    assert probability(t, freedom) == pytest.approx(wanted, rel=1e-11)
    assert probability(-t, freedom) == probability(t, freedom)
    assert quantile(freedom, level=wanted) == pytest.approx(t, rel=1e-9)


def test_the_test_of_two_groups_is_that_of_scipy() -> None:
    first, second = SeedGroup((0, 1, 2), (1.0, 1.2, 1.1)), SeedGroup((3, 4, 5, 6), (1.5, 1.3, 1.9, 1.4))
    # scipy.stats.ttest_ind(first, second, equal_var=False)
    assert welch(first, second) == pytest.approx((-2.9593201512468625, 4.0427608964663815, 0.04103442762601099))
    assert first.mean == pytest.approx(1.1) and first.deviation == pytest.approx(0.1)
    assert first.band == pytest.approx(4.302652729749462 * 0.1 / math.sqrt(3))
    assert welch(first, SeedGroup((3,), (1.5,))) is None
    assert welch(SeedGroup((0, 1), (2.0, 2.0)), SeedGroup((2, 3), (1.0, 1.0))) is None


def test_runs_belong_together_if_only_their_seed_name_and_place_differ() -> None:
    def recipe(seed: int, rate: str, name: str) -> dict[str, str]:
        return {"run.seed": str(seed), "run.name": name, "run.directory": name, "optimizer.learning_rate": rate}

    recipes = [recipe(0, "1", "a"), recipe(0, "2", "b"), recipe(1, "1", "c"), recipe(1, "1", "d"), recipe(2, "1", "e")]
    found = groups_of(recipes, [1.0, 2.0, 3.0, 4.0, math.nan])
    assert found == [SeedGroup((0, 2, 4), (1.0, 3.0)), SeedGroup((1,), (2.0,))]


def runs(directory: Path) -> dict[str, str]:
    """Return the paths of six runs, by name: three seeds each of two learning rates, whose losses differ clearly."""
    found = {}
    for rate, loss in ((0.1, 2.0), (0.2, 3.0)):
        for seed in (0, 1, 2):
            name = f"rate{rate}-{seed}"
            changes = [f"optimizer.learning_rate={rate}", f"run.seed={seed}", f"run.name={name}"]
            run = create(load(write(directory), [*changes, f'run.directory="{directory}"']))
            log = EventLog(run, attempt=1)
            log.write("run_started", step=0, **fake_run.started(name))
            log.write("step", step=1, metrics={"train/loss": loss + seed / 100, "gradients/norm": seed})
            log.close()
            found[name] = str(run)
    return found


def test_compare_says_whether_groups_of_seeds_differ_by_more_than_noise(tmp_path: Path) -> None:
    paths = runs(tmp_path)
    shown = compare(list(paths.values()))
    assert "rate0.1-0 and 2 more  3     2.0100            0.0100     1.9852 to 2.0348" in shown
    assert "rate0.2-0 and rate0.1-0 differ by +1: more than noise (Welch's t = 122.47" in shown
    assert "not more than noise" in compare(list(paths.values()), metric="gradients/norm")
    assert "SEEDS" not in compare([paths["rate0.1-0"], paths["rate0.2-0"]])
    alone = compare([paths["rate0.1-0"], paths["rate0.2-0"]], metric="train/loss")
    assert "needs two seeds or more of each" in alone
    with pytest.raises(TrainkitError, match=r"no run has the metric 'train/los'\nhint: metrics are train/loss"):
        compare(list(paths.values()), metric="train/los")
