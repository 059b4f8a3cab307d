"""The step of a black box, computed again by itself: whether it breaks again, and at which operation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from trainkit import files
from trainkit.checkpoint import store
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import Tell
from trainkit.errors import TrainkitError
from trainkit.events.tail import number
from trainkit.recipe import Recipe
from trainkit.run.black_box import boxes
from trainkit.run.replay import open_replay
from trainkit.rundir.directory import BLACK_BOXES, as_typed
from trainkit.train.first_non_finite import BrokenOperation, find_origins
from trainkit.train.metrics import metrics_of


class Examined(NamedTuple):
    """A black box and what its step did when it was computed again."""

    box: dict[str, Any]
    first: int
    """The step of the checkpoint that it was replayed from; 0 for the beginning of the run."""
    metrics: dict[str, float]
    differences: tuple[str, ...]
    """The metrics with other bits than in the run."""
    origins: tuple[BrokenOperation, ...]
    cache: Cache
    data: TrainSet


def read_box(directory: Path, step: int | None) -> dict[str, Any]:
    """Return what is in the black box of a step, or in the newest one if that is None.

    Raises:
        TrainkitError: there is none, or it is damaged.
    """
    found = boxes(directory)
    if not found or (step is not None and step not in found):
        which = "black box" if step is None else f"black box of step {step}"
        there = ", ".join(map(str, found)) or "none"
        raise TrainkitError(f"the run has no {which}; there are: {there}", where=as_typed(directory / BLACK_BOXES))
    path = directory / BLACK_BOXES / str(found[-1] if step is None else step) / "box.json"
    try:
        return files.read_json(path)
    except (OSError, ValueError) as error:
        raise TrainkitError(f"the black box cannot be read: {error}", where=as_typed(path)) from error


def examine(directory: Path, recipe: Recipe, box: dict[str, Any], *, progress: Tell = None) -> Examined:
    """Compute the step of a black box again, and write the operation that broke into its `origin.jsonl`.

    The steps before it are computed from the newest checkpoint of the same course: one that left out the same steps.
    """
    step, left_out = int(box["step"]), frozenset(map(int, box["left_out"]))
    usable = [
        info.step
        for info in store.checkpoints(directory)
        if info.step < step and set(info.manifest.left_out) == {s for s in left_out if s <= info.step}
    ]
    replay = replace(open_replay(directory, recipe, max(usable, default=0), progress=progress), left_out=left_out)
    state = replay.state_before(step)
    batch = replay.batch(step)
    with jax.set_mesh(replay.program.built.mesh):
        origins = tuple(find_origins(replay.program.built.step, state, batch))
    _, found = replay.step_for(step)(state, batch)
    metrics = metrics_of(jax.device_get(found))
    before = {name: number(value) for name, value in box["metrics"].items()}
    differences = tuple(
        f"{name} was {before[name]!r} and is {value!r}"
        for name, value in sorted(metrics.items())
        if name in before and repr(before[name]) != repr(value)
    )
    lines = [json.dumps(asdict(origin) | {"in_words": origin.in_words()}) for origin in origins]
    files.write(directory / BLACK_BOXES / str(step) / "origin.jsonl", "".join(f"{line}\n" for line in lines))
    return Examined(box, replay.first, metrics, differences, origins, replay.cache, replay.data)
