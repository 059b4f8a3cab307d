"""The state at the start of an attempt: that of a checkpoint, or a new one."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint import restore, store
from trainkit.checkpoint.leaves import named_leaves
from trainkit.checkpoint.manifest import Manifest
from trainkit.data.cache.token_cache import Cache
from trainkit.data.recorded import check_same_data
from trainkit.errors import TrainkitError
from trainkit.hub.load import check_same_base, load_adapter, load_base
from trainkit.optim.average import first_averages
from trainkit.recipe import Recipe
from trainkit.run.start import Start
from trainkit.train.build import BuiltStep, model_shapes, new_state, state_shapes
from trainkit.train.reference import ProgressLog
from trainkit.train.state import State, initial_live, initial_scale, without_frozen


class Initial(NamedTuple):
    """The state at the start of an attempt, and where it came from."""

    state: State
    manifest: Manifest | None = None
    """That of the restored checkpoint; None for a new state."""
    skipped: bool = False
    """Whether a newer checkpoint is damaged."""


def initial_state(
    directory: Path, recipe: Recipe, start: Start, *, built: BuiltStep, cache: Cache, log: ProgressLog
) -> Initial:
    """Return the state at the start of an attempt: that of a checkpoint or, without one, a new one.

    Raises:
        TrainkitError: no checkpoint is whole, none has this step, or it was trained on other data or another base.
    """
    damaged: list[Path] = []

    def on_damaged(path: Path, error: TrainkitError) -> None:
        damaged.append(path)
        message = f"the checkpoint {path.name} is damaged and was skipped: {error.problem}"
        log.write("alert", step=log.step, kind="checkpoint", message=message)

    key = jax.random.key(recipe.run.seed)
    read = partial(_read_state, recipe=recipe, built=built, key=key, reset_optimizer=start.reset_optimizer)
    if start.step is None:
        restored = restore.restore_newest(directory, read, on_damaged=on_damaged)
    else:
        info = store.find(directory, start.step)
        restored = read(info.directory), info.manifest
    if restored is None:
        return Initial(first_state(recipe, built))
    state, manifest = restored
    check_same_base(manifest, state.frozen, where=directory)
    check_same_data(cache, recipe, manifest.data, where=directory)
    return Initial(state, manifest, skipped=bool(damaged))


def first_state(recipe: Recipe, built: BuiltStep) -> State:
    """Return the state before the first step of a run."""
    numbers = load_adapter(recipe, model_shapes(built))  # small, so an error in it is found early
    state: State = new_state(
        built, jax.random.key(recipe.run.seed), load_base(recipe, built.base, on=built.mesh), numbers
    )
    return state


def _read_state(path: Path, *, recipe: Recipe, built: BuiltStep, key: jax.Array, reset_optimizer: bool) -> State:
    """Return the state in a checkpoint; parts that it lacks, or that start again, are new."""
    shardings, template = built.shardings, without_frozen(state_shapes(built))

    def new_part(part: str, weights: Any = None) -> Any:
        shape = getattr(shardings, part)
        return new_state(built, key, weights, part=part) if jax.tree.leaves(shape) else shape

    has_frozen = bool(jax.tree.leaves(shardings.frozen))
    frozen = new_part("frozen", load_base(recipe, built.base, on=built.mesh) if has_frozen else None)
    found = manifests.read(path)
    names = found.leaves
    saved = {name.partition(".")[0] for name in names}
    has_live, is_scaled, is_averaged = (part in saved for part in ("live", "loss_scale", "averages"))
    remembered = {name for name in names if name.startswith("history.")}
    remembers = remembered == named_leaves(template.history, under="history").keys()
    guarded = {name: leaf.shape for name, leaf in found.leaves.items() if name.startswith("guard.")}
    wanted = named_leaves(template.guard, under="guard")
    guards = guarded == {name: leaf.shape for name, leaf in wanted.items()}
    same = is_scaled == (template.loss_scale is not None) and is_averaged == (template.averages is not None)
    if has_live and same and remembers and guards and not reset_optimizer:
        return replace(restore.restore(path, template), frozen=frozen)
    new: dict[str, Any] = {"frozen": frozen}
    if reset_optimizer:
        new["optimizer"] = None
        is_averaged &= recipe.optimizer.averages_itself is None
    if not has_live:  # written by an early version, in which nothing could change during a run
        new["live"] = jax.device_put(initial_live(), shardings.live)
    if template.loss_scale is None or not is_scaled:  # only float16 has one
        new["loss_scale"] = template.loss_scale and jax.device_put(initial_scale(), shardings.loss_scale)
    if template.averages is None or not is_averaged:
        new |= {"averages": None, "average_count": None}
    if not remembers:  # other statistics than before begin with nothing
        new["history"] = new_part("history")
    if not guards:  # nor does another guard know what came before
        new["guard"] = new_part("guard")
    kept = [field.name for field in fields(State) if field.name not in new]
    state = State(**new, **{name: restore.restore(path, getattr(template, name), under=name) for name in kept})
    return _with_first_parts(state, built)


def _with_first_parts(state: State, built: BuiltStep) -> State:
    """Return a state with the parts that begin with its parameters and that it lacks: optimizer state and averages."""
    shardings = built.shardings
    if state.optimizer is None:
        state = replace(
            state, optimizer=jax.jit(built.optimizer_state, out_shardings=shardings.optimizer)(state.params)
        )
    if shardings.averages is None or state.averages is not None:
        return state
    averages = jax.jit(first_averages, out_shardings=shardings.averages)(state.params)
    return replace(state, averages=averages, average_count=jax.device_put(jnp.int32(0), shardings.average_count))
