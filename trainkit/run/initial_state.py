"""The state at the start of an attempt."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from trainkit.checkpoint import manifest as manifests
from trainkit.checkpoint import restore, store
from trainkit.checkpoint.manifest import Manifest
from trainkit.data.cache.build import Cache
from trainkit.data.recorded import check_same_data
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.hub.load import load_adapter, load_base
from trainkit.infer.adapted import check_same_base
from trainkit.recipe.toml.load import Loaded
from trainkit.run.start import Start, announce
from trainkit.train import loss_scale
from trainkit.train.build import BuiltStep, model_shapes, new_state, state_shapes
from trainkit.train.state import State, initial_live, without_frozen


def initial_state(
    directory: Path,
    loaded: Loaded,
    start: Start,
    *,
    built: BuiltStep,
    cache: Cache,
    log: EventLog,
) -> State:
    """Return the state at the start of an attempt: a new one, or that of a checkpoint. Log what has changed since then.

    Raises:
        TrainkitError: no checkpoint is intact, none has this step, or it was trained on other data or another base.
    """
    damaged: list[Path] = []

    def on_damaged(path: Path, error: TrainkitError) -> None:
        damaged.append(path)
        message = f"the checkpoint {path.name} is damaged and was skipped: {error.problem}"
        log.write("alert", step=log.step, kind="checkpoint", message=message)

    key = jax.random.key(loaded.recipe.run.seed)
    shardings = built.shardings
    template = without_frozen(state_shapes(built))

    @functools.cache
    def fresh(part: str) -> Any:
        """A part of a new state, and nothing besides it."""
        if not jax.tree.leaves(getattr(shardings, part)):
            return getattr(shardings, part)
        # of these only what is frozen is made of weights
        weights = load_base(loaded.recipe, built.base, on=built.mesh) if part == "frozen" else None
        return new_state(built, key, weights, part=part)

    def read(path: Path) -> State:
        parts = {name.partition(".")[0] for name in manifests.read(path).leaves}
        has_live, is_scaled = "live" in parts, "loss_scale" in parts
        if has_live and is_scaled == (template.loss_scale is not None) and not start.reset_optimizer:
            return replace(restore.restore(path, template), frozen=fresh("frozen"))
        kept = {part.name: getattr(template, part.name) for part in fields(State)}
        new: dict[str, Any] = {"frozen": fresh("frozen")}
        if start.reset_optimizer:
            new["optimizer"] = fresh("optimizer")
        if not has_live:  # an early version saved it, in which nothing could change during a run
            new["live"] = jax.device_put(initial_live(), shardings.live)
        if template.loss_scale is None or not is_scaled:  # only float16 has one
            new["loss_scale"] = template.loss_scale and jax.device_put(loss_scale.initial(), shardings.loss_scale)
        found = {name: restore.restore(path, part, under=name) for name, part in kept.items() if name not in new}
        return State(**found, **new)

    if start.step is None:
        restored = restore.restore_newest(directory, read, on_damaged=on_damaged)
    else:
        info = store.find(directory, start.step)
        restored = read(info.directory), info.manifest
    if restored is None:
        if log.step:
            announce(log, loaded, start, resumed_from=None)
        numbers = load_adapter(loaded.recipe, model_shapes(built))  # small, so an error in it is found early
        return new_state(built, key, load_base(loaded.recipe, built.base, on=built.mesh), numbers)
    state, manifest = restored
    check_same_base(manifest, state.frozen, where=directory)
    check_same_data(cache, loaded.recipe, manifest.data, where=directory)
    _log_devices(manifest, jax.tree.leaves(shardings)[0].mesh, log)
    if manifest.step != log.step:
        announce(log, loaded, start, resumed_from=manifest.step)
    # also damaged ones that were passed over: kept beside whole ones they would push these out
    for step in (
        store.set_aside(store.directory_of(directory), beyond=manifest.step)
        if start.step is not None or damaged
        else []
    ):
        log.write("log", step=log.step, level="info", message=f"the checkpoint of step {step} was set aside")
    return state


def _log_devices(manifest: Manifest, mesh: Mesh, log: EventLog) -> None:
    now = sorted(device.device_kind for device in mesh.devices.flat)
    if (manifest.devices, manifest.mesh) != (now, dict(mesh.shape)):
        before, after = _devices(manifest.devices, manifest.mesh), _devices(now, dict(mesh.shape))
        message = f"devices: {before} -> {after}; results agree to rounding, not bit for bit"
        log.write("log", step=log.step, level="warning", message=message)


def _devices(kinds: list[str], axes: dict[str, int]) -> str:
    counted = ", ".join(f"{count} x {kind}" for kind, count in Counter(kinds).items())
    return f"{counted} ({', '.join(f'{axis} {size}' for axis, size in axes.items())})"
