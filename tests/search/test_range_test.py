"""The range test of learning rates: what it concludes from losses, and one on a real trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer import BARE, trainkit, workplace

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.search import range_test
from trainkit.search.range_test import RangeTest, RateRecorder, _Enough

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"


def recorded(losses: list[float]) -> RateRecorder:
    """Return the recorder after a run with these losses, whose rate doubles in each step."""
    record = RateRecorder(len(losses))
    with pytest.raises(_Enough):
        for step, loss in enumerate(losses, start=1):
            metrics = {"train/loss": str(loss), "optimizer/learning_rate": 1e-6 * 2**step}
            record({"type": "step", "step": step, "metrics": metrics})
    return record


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    losses = [*[5.0] * 10, *np.linspace(5, 4.8, 10), *np.linspace(4.8, 1, 5), *np.linspace(1, 9, 40)]
    record = recorded([float(loss) for loss in losses])
    found = RangeTest(tuple(record.points), record.exploded)
    assert found.exploded and len(found.points) < len(losses)
    assert found.steepest is not None and 20 <= found.steepest.step <= 26 < found.lowest.step
    assert found.as_json()["suggestion"] == found.steepest.learning_rate


def test_a_loss_that_is_no_number_ends_the_test_and_a_loss_that_never_falls_suggests_nothing() -> None:
    record = recorded([5.0, 5.1, 5.2, float("nan"), 4.0])
    assert record.exploded and len(record.points) == 3
    assert RangeTest(tuple(record.points), record.exploded).as_json()["suggestion"] is None


def test_a_range_test_neither_evaluates_nor_samples_nor_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Recipe] = []

    def attempt(*_: Any, loaded: Loaded, **__: Any) -> int:
        seen.append(loaded.recipe)
        raise _Enough

    monkeypatch.setattr(range_test, "attempt", attempt)
    settings = ["evaluate.every=5", "statistics.every=5", "checkpoint.keep_every=5", "export.every=5"]
    settings += ["guard.non_finite=skip"]
    with pytest.raises(TrainkitError, match="exploded in step 1"):
        range_test.find_rate(QUICKSTART, settings, low=1e-6, high=1.0, steps=20)
    (recipe,) = seen
    assert recipe.train.steps == 20 and recipe.sample is None and recipe.export is None and not recipe.guard.in_step
    assert not (recipe.evaluate.every or recipe.statistics.every or recipe.checkpoint.keep_every)


@pytest.mark.parametrize(
    "settings",
    [
        ["checkpoint.keep_every=[100, 1000]"],
        ['train.duration="9h"', 'schedule={type="wsd", warmup=10}'],
        ['train.until="2130-01-01 08:00"', 'schedule={type="wsd", warmup=10}'],
        ['average={type="ema", start=1000}'],
    ],
)
def test_the_length_of_the_recipe_has_no_part_in_a_range_test(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Recipe] = []

    def attempt(*_: Any, loaded: Loaded, **__: Any) -> int:
        seen.append(loaded.recipe)
        raise _Enough

    monkeypatch.setattr(range_test, "attempt", attempt)
    with pytest.raises(TrainkitError, match="exploded in step 1"):
        range_test.find_rate(QUICKSTART, settings, low=1e-6, high=0.5, steps=20)
    (recipe,) = seen
    assert recipe.train.steps == 20 and not recipe.train.is_timed and recipe.average is None
    assert recipe.optimizer.learning_rate == pytest.approx(0.5) and recipe.schedule.type == "exponential-rise"
    # of AdamW beside Muon, as in the recipe
    assert recipe.optimizer.adamw.learning_rate == pytest.approx(0.25)


def test_steps_whose_batches_have_no_targets_are_no_points_of_the_test() -> None:
    record = RateRecorder(3)
    for step, metrics in ((1, {"train/loss": 5.0, "optimizer/learning_rate": 1e-6}), (2, {})):
        record({"type": "step", "step": step, "metrics": metrics})
    with pytest.raises(_Enough):
        record({"type": "step", "step": 3, "metrics": {}})
    assert [point.step for point in record.points] == [1] and not record.exploded


def test_find_lr_trains_with_rising_rates_and_leaves_no_run(tmp_path: Path) -> None:
    place = workplace(tmp_path, BARE, documents=10)
    done = trainkit(place, "find-lr", "tiny.toml", "--json", "--steps", "12", "--low", "1e-4", "--high", "1e-2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rates = [point["learning_rate"] for point in found["points"]]
    np.testing.assert_allclose(rates, np.geomspace(1e-4, 1e-2, 12), rtol=1e-5)
    assert not found["exploded"] and found["suggestion"] in rates
    assert not (place / "runs").exists()
    wrong = trainkit(place, "find-lr", "tiny.toml", "--low", "1", "--high", "0.1")
    assert wrong.returncode == 2 and "the rates must rise" in wrong.stderr
