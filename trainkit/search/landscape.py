"""The loss along a line through the parameters of a checkpoint (Goodfellow et al. 2015, Li et al. 2018)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.checkpoint import restore
from trainkit.checkpoint.store import Info, read_checkpoint
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Tell
from trainkit.errors import TrainkitError
from trainkit.events.tail import as_logged
from trainkit.models import leaf_names
from trainkit.models.casting import cast
from trainkit.models.master_weights import in_compute_dtype
from trainkit.parallel.mesh import batch_sharding
from trainkit.recipe import Recipe
from trainkit.recipe.optimizers.parameters import is_stacked
from trainkit.run.initial_state import initial_state
from trainkit.run.start import Start
from trainkit.rundir.directory import recipe_of
from trainkit.tasks import Task
from trainkit.tasks import build as build_task
from trainkit.train.build import BuiltStep, build, state_shapes
from trainkit.train.gradients import measure_baselines
from trainkit.train.planning import UNKNOWN_SIZE, plan_of
from trainkit.train.prefetch import to_device
from trainkit.train.state import LOSS, State, key_of_step

Direction = Literal["gradient", "update", "random", "between"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
#: What a distance of 1 is in each direction, and the default range.
UNITS: dict[Direction, str] = {
    "gradient": "the norm of the parameters, downhill",
    "random": "the norm of each parameter in each layer",
    "update": "the next update",
    "between": "the whole way to the other checkpoint",
}
RANGES: dict[Direction, tuple[float, float]] = {
    "gradient": (-0.02, 0.02),
    "random": (-0.5, 0.5),
    "update": (-5.0, 10.0),
    "between": (-0.25, 1.25),
}


@dataclass(frozen=True)
class Landscape:
    """Losses along a line: `losses[i]`, in nats, at `distances[i]` from the checkpoint's parameters."""

    run: str
    step: int
    direction: Direction
    distances: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def unit(self) -> str:
        """Return what a distance of 1 is."""
        return UNITS[self.direction]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        points = [
            {"distance": at, "loss": as_logged(loss)} for at, loss in zip(self.distances, self.losses, strict=True)
        ]
        return {"run": self.run, "step": self.step, "direction": self.direction, "unit": self.unit, "points": points}

    def write(self, path: Path) -> None:
        """Write it as `.json` or `.csv`. Raises TrainkitError for another suffix, or if it cannot be written."""
        check_output(path)
        try:
            with path.open("w", newline="") as file:
                if path.suffix == ".json":
                    file.write(json.dumps(self.as_json(), indent=1) + "\n")
                else:
                    csv.writer(file).writerows([("distance", "loss"), *zip(self.distances, self.losses, strict=True)])
        except OSError as error:
            raise TrainkitError(f"{path} cannot be written: {error.strerror}", where="--output") from error


def check_output(path: Path) -> None:
    """Raise TrainkitError unless the suffix is `.json` or `.csv` and the directory exists."""
    if path.suffix not in (".json", ".csv"):
        raise TrainkitError(f"{path} is neither JSON nor CSV", where="--output", hint="end its name in .json or .csv")
    if not path.parent.is_dir():
        raise TrainkitError(f"{path} cannot be written: there is no directory {path.parent}", where="--output")


def landscape(
    directory: Path,
    step: int | None,
    *,
    direction: Direction,
    other: tuple[Path, int | None] | None = None,
    points: int,
    span: tuple[float, float] | None = None,
    seed: int = 0,
    progress: Tell = None,
) -> Landscape:
    """Return the loss of the batch after a checkpoint along a direction, without dropout.

    `gradient` is downhill, `update` the optimizer's next update, `random` has in each layer and parameter the norm of
    that parameter (Li et al. 2018, section 4), and `between` goes to the parameters of another checkpoint.

    Args:
        step: None for the newest checkpoint.
        other: the run and step of the other checkpoint, for `between`.
        span: the first and the last distance, in `UNITS`; None for `RANGES`.
        seed: of `random`.

    Raises:
        TrainkitError: a checkpoint is missing, or of another model; the range is empty; the task compares with a
            reference.
    """
    low, high = span or RANGES[direction]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise TrainkitError(
            f"the range goes from {low:g} to {high:g}", where="--begin, --end", hint="--begin -1 --end 1"
        )
    if (direction == "between") != (other is not None):
        needs = "needs the other run" if other is None else "is no direction to another run"
        raise TrainkitError(f"--direction {direction} {needs}", hint="trainkit landscape RUN OTHER --direction between")
    recipe = recorded.with_own_tokenizer(recipe_of(directory).recipe, directory)
    if recipe.task.reference:
        raise TrainkitError(
            f'task.type = "{recipe.task.type}" compares with a frozen reference, whose numbers a landscape lacks',
            where=str(directory),
        )
    found = read_checkpoint(directory, step, lambda info: info)
    cache = caches.build(recipe, progress=progress)
    try:
        plan = plan_of(recipe, vocab_size=cache.vocab_size, data=UNKNOWN_SIZE, directory=directory)
        built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
        state = _state(directory, recipe, built, cache, found)
        read = TrainSet(cache, recipe).cut_batch(found.step)
        split = plan.batch.of_size(recipe.batch_sizes.at(found.step))
        batch = to_device(read, accumulation=split.accumulation, sharding=batch_sharding(built.mesh))
    finally:
        cache.close()
    distances = np.linspace(low, high, points)
    with jax.set_mesh(built.mesh):
        line = _line(built, state, batch, direction=direction, other=other, seed=seed)
        losses = losses_along(built.task, built.compute)(state, line, jnp.asarray(distances, jnp.float32), batch)
    found_losses = tuple(map(float, np.asarray(losses)))
    return Landscape(directory.name, found.step, direction, tuple(map(float, distances)), found_losses)


def losses_along(task: Task, compute: jnp.dtype) -> Callable[..., Array]:
    """Return the compiled function (state, direction, distances (N,), batch) → mean losses of the batch, (N,)."""

    def losses(state: State, line: PyTree, distances: Array, batch: Any) -> Array:
        def loss_at(distance: Array) -> Array:
            params = jax.tree.map(lambda p, d: p.astype(jnp.float32) + distance * d, state.params, line)
            return mean_loss(task, compute, params, state.frozen, batch, key=key_of_step(state.key, LOSS, state.step))

        return jax.lax.map(loss_at, distances)

    return jax.jit(losses)


def mean_loss(
    task: Task, compute: jnp.dtype, params: PyTree, frozen: PyTree, batch: Any, *, key: PRNGKeyArray
) -> Array:
    """Return the mean loss of a batch, (A, M, …), at these parameters, which are float32."""
    model = eqx.combine(cast(frozen, compute), in_compute_dtype(params, compute))
    baselines = measure_baselines(task, lambda _: model, batch)

    def add(sums: tuple[Array, Array], micro_batch: Any) -> tuple[tuple[Array, Array], None]:
        loss = task.loss(model, {**micro_batch, **baselines}, key=key)
        return (sums[0] + loss.sum, sums[1] + loss.weight), None

    (total, weight), _ = jax.lax.scan(add, (jnp.float32(0), jnp.float32(0)), dict(batch))
    return total / jnp.where(weight > 0, weight, 1)


def _line(
    built: BuiltStep,
    state: State,
    batch: Any,
    *,
    direction: Direction,
    other: tuple[Path, int | None] | None,
    seed: int,
) -> PyTree:
    """Return the direction, in float32, whose length is one unit of distance."""
    params = jax.tree.map(lambda p: p.astype(jnp.float32), state.params)
    match direction:
        case "gradient":
            key = key_of_step(state.key, LOSS, state.step)
            gradient = jax.jit(
                jax.grad(lambda p: mean_loss(built.task, built.compute, p, state.frozen, batch, key=key))
            )(params)
            return downhill(gradient, params)
        case "random":
            return random_line(params, jax.random.key(seed))
        case "update":
            after, _ = jax.jit(built.step)(state, batch)
            end = after.params
        case "between":
            assert other is not None
            template = state_shapes(built).params
            end = read_checkpoint(*other, lambda info: restore.restore(info.directory, template, under="params"))
    return jax.tree.map(lambda q, p: q.astype(jnp.float32) - p, end, params)


def downhill(gradient: PyTree, params: PyTree) -> PyTree:
    """Return the direction against the gradient, as long as the parameters."""
    size, length = (jnp.sqrt(sum(jnp.square(x).sum() for x in jax.tree.leaves(tree))) for tree in (params, gradient))
    return jax.tree.map(lambda g: -g * (size / jnp.where(length > 0, length, 1)), gradient)


def random_line(params: PyTree, key: PRNGKeyArray) -> PyTree:
    """Return normal numbers, scaled so that each parameter of each layer has the norm of that of `params`."""
    names, structure = jax.tree.leaves(leaf_names(params)), jax.tree.structure(params)
    drawn = []
    for number, (name, leaf) in enumerate(zip(names, jax.tree.leaves(params), strict=True)):
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
        axes = tuple(range(is_stacked(name), leaf.ndim))
        size, length = (jnp.sqrt(jnp.square(x).sum(axes, keepdims=True)) for x in (leaf, noise))
        drawn.append(noise * (size / jnp.where(length > 0, length, 1)))
    return jax.tree.unflatten(structure, drawn)


def _state(directory: Path, recipe: Recipe, built: BuiltStep, cache: Cache, found: Info) -> State:
    start = Start(step=found.step)
    return initial_state(directory, recipe, start, built=built, cache=cache, log=_NoLog(found.step)).state


class _NoLog:
    """Stands in for a run's log, to which a landscape writes nothing."""

    def __init__(self, step: int) -> None:
        self.step = step

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        """Drop the event."""
