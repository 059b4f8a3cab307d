"""The loss along a line: each number is that of the model at that place, evaluated by itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from trainer import BARE, run_of, trainkit, workplace

from trainkit.cli.landscape import draw, table
from trainkit.errors import TrainkitError
from trainkit.models import leaf_names
from trainkit.recipe.sections.task import CausalLM
from trainkit.search.landscape import RANGES, Landscape, downhill, losses_along, random_line
from trainkit.tasks import Loss
from trainkit.tasks import build as build_task
from trainkit.tasks.causal_lm import CausalLMTask
from trainkit.tasks.statistics import Ratio, Statistic


def test_losses_along_a_line_are_those_of_the_models_on_it() -> None:
    state, batch = small.state(), small.batch(0, accumulation=2)
    line = random_line(state.params, jax.random.key(1))
    distances = [-0.5, 0.0, 0.25, 1.0]
    along = losses_along(build_task(CausalLM()), jnp.dtype(jnp.float32))
    found = along(state, line, jnp.asarray(distances), batch)
    direct = jax.jit(
        lambda d: build_task(CausalLM()).loss(
            eqx.combine(jax.tree.map(lambda p, x: p + d * x, state.params, line), state.frozen),
            {name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()},
            key=jax.random.key(0),
        )
    )
    for at, loss in zip(distances, found, strict=True):
        expected = direct(at)
        np.testing.assert_allclose(loss, expected.sum / expected.weight, rtol=1e-6)
    assert len(set(map(float, found))) == len(distances)


class TimesMean(CausalLMTask):
    """The loss of each row times the mean loss of the whole batch."""

    baselines: ClassVar[Mapping[str, Statistic]] = {"mean": Ratio.zero()}

    def measure_baselines(self, model: Any, batch: Mapping[str, Any]) -> dict[str, Ratio]:
        found = super().loss(model, batch)
        return {"mean": Ratio(found.sum, found.weight)}

    def loss(self, model: Any, batch: Mapping[str, Any], *, key: Any = None) -> Loss:
        found, mean = super().loss(model, batch), batch["mean"]
        return Loss(found.sum * mean.sum / mean.weight, found.weight)


def test_a_loss_that_depends_on_the_whole_batch_has_its_baselines_at_every_place() -> None:
    state, batch, distances = small.state(), small.batch(0, accumulation=2), jnp.asarray([0.0, 1.0])
    line = random_line(state.params, jax.random.key(1))
    plain, times_mean = (
        losses_along(task, jnp.dtype(jnp.float32))(state, line, distances, batch)
        for task in (build_task(CausalLM()), TimesMean())
    )
    np.testing.assert_allclose(times_mean, np.square(plain), rtol=1e-5)


def test_directions_have_the_lengths_that_their_units_say() -> None:
    params = small.state().params
    line = random_line(params, jax.random.key(0))
    for name, p, d in zip(*map(jax.tree.leaves, (leaf_names(params), params, line)), strict=True):
        axes = tuple(range(name.startswith("blocks."), p.ndim))
        np.testing.assert_allclose(np.sqrt(np.square(d).sum(axes)), np.sqrt(np.square(p).sum(axes)), rtol=1e-5)
    gradient = jax.tree.map(lambda p: p**2 + 1, params)
    down = downhill(gradient, params)
    size, length, along = (
        sum(float((a * b).sum()) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))
        for x, y in ((params, params), (down, down), (down, gradient))
    )
    np.testing.assert_allclose(length, size, rtol=1e-5)
    squares = sum(float(jnp.square(g).sum()) for g in jax.tree.leaves(gradient))
    np.testing.assert_allclose(along, -np.sqrt(size * squares), rtol=1e-5)
    nothing = jax.tree.map(jnp.zeros_like, params)
    assert all((np.asarray(d) == 0).all() for d in jax.tree.leaves(downhill(nothing, params)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schedules = "[schedules]\nbatch_size = [[0, 4], [3, 8]]\nsequence_length = [[0, 16], [3, 32]]\n"
    place = workplace(tmp_path_factory.mktemp("landscape"), BARE + schedules)
    return run_of(place, "--set", "train.steps=4", "--set", "checkpoint.keep_every=2")


def losses(run: Path, *arguments: str) -> dict[float, float]:
    done = trainkit(run.parent.parent, "landscape", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return {point["distance"]: point["loss"] for point in json.loads(done.stdout)["points"]}


def test_the_line_between_two_checkpoints_ends_at_each_of_them_and_an_update_at_the_next_step(run: Path) -> None:
    at_4 = losses(run, "tiny/4", "--points", "3", "--direction", "gradient")
    assert at_4[0.02] != at_4[0.0] != at_4[-0.02]
    between = losses(run, "tiny/2", "tiny/4", "--direction", "between", "--points", "2", "--begin", "0", "--end", "1")
    # the batch is that of step 2 in both
    update = losses(run, "tiny/2", "--direction", "update", "--points", "2", "--begin", "0", "--end", "1")
    assert between[0.0] == pytest.approx(update[0.0], rel=1e-6)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    logged = {event["step"]: event["metrics"]["train/loss"] for event in events if event["type"] == "step"}
    assert update[0.0] == pytest.approx(logged[3], rel=1e-5), "the loss before an update is that of its step"
    assert update[1.0] < update[0.0]
    assert between[1.0] < between[0.0]


def test_a_landscape_is_drawn_and_written(run: Path, tmp_path: Path) -> None:
    place = run.parent.parent
    for suffix in ("csv", "json"):
        file = tmp_path / f"line.{suffix}"
        done = trainkit(place, "landscape", "tiny", "--direction", "random", "--points", "5", "--output", str(file))
        assert done.returncode == 0, done.stderr
        assert "tiny at step 4, --direction random" in done.stdout and "the checkpoint" in done.stdout
    with (tmp_path / "line.csv").open() as file:
        rows = [(float(row["distance"]), float(row["loss"])) for row in csv.DictReader(file)]
    points = json.loads((tmp_path / "line.json").read_text())["points"]
    assert rows == [(point["distance"], point["loss"]) for point in points]
    assert [at for at, _ in rows] == list(np.linspace(*RANGES["random"], 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny", "--direction", "between"), "--direction between needs the other run"),
        (("tiny", "tiny/2", "--direction", "random"), "--direction random is no direction to another run"),
        (("tiny", "--begin", "1", "--end", "1"), "the range goes from 1 to 1"),
        (("tiny", "--output", "line.txt"), "line.txt is neither JSON nor CSV"),
        (("tiny/3", "--output", "none/line.csv"), "none/line.csv cannot be written: there is no directory none"),
        (("tiny/3",), "3"),
        (("tiny", "--direction", "up"), "up"),
    ],
)
def test_wrong_arguments_are_refused(run: Path, arguments: tuple[str, ...], message: str) -> None:
    done = trainkit(run.parent.parent, "landscape", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_losses_that_are_not_finite_are_left_out_of_the_picture() -> None:
    found = Landscape("x", 1, "gradient", (-1.0, 0.0, 1.0), (float("nan"), 1.0, 3.0))
    lines = draw(found, width=60)
    assert all(len(line) <= 60 for line in lines) and "3.0000" in lines[0] and "1" in lines[-1]
    assert "the checkpoint" in "\n".join(table(found)) and "nan" in "\n".join(table(found))
    nothing = replace(found, losses=(float("nan"),) * 3)
    assert draw(nothing, width=60) == ["no two losses are finite: there is nothing to draw"]
    with pytest.raises(TrainkitError, match="cannot be written"):
        found.write(Path("/nowhere/at/all.csv"))
