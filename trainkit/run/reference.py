"""What a frozen reference model says of every example: computed once, before the first step, and kept in the cache.

    CACHE/reference/KEY.f32    the numbers of one stream's examples, in stored order: float32, little-endian
    CACHE/reference/KEY.json   their number and checksum, written last
    RUN/reference.json         the digest of the parameters that they were computed with, and the model's settings

The reference is the model that the run begins with, without its adapter. A run that resumes has other parameters, so it
finds the file by what its own directory has; where the file is gone, the parameters are made again. Before the first
step nothing depends on the reference, so it is always that of the present model.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from trainkit.checkpoint.leaves import digest
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet, validation_sources
from trainkit.data.cache.build import Cache
from trainkit.data.cache.stream import Stream
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import writing
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.hub.load import base_digest, load_base
from trainkit.models.adapters import without_adapters
from trainkit.models.casting import cast
from trainkit.models.nf4 import sources, without_sources
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Source
from trainkit.recipe.spec import plugin_digest
from trainkit.train.build import BuiltStep, new_state
from trainkit.train.prefetch import to_device
from trainkit.train.state import State

#: Raise it when the same model and data would give other numbers than before.
FORMAT = 2
#: The identity of the reference, in the run directory.
FILE = "reference.json"
#: Seconds between two reports of progress.
REPORT_SECONDS = 10.0


def attach_reference(
    directory: Path,
    recipe: Recipe,
    cache: Cache,
    data: TrainSet,
    built: BuiltStep,
    plan: Plan,
    state: State,
    *,
    check: Callable[[], None],
    log: EventLog,
) -> None:
    """Give the streams of a run the columns that its task compares with, so that all batches have them.

    Waits for the whole cache, then calls `check`, which raises where training would learn nothing. What is not in the
    cache already is computed, set by set. Does nothing where the task needs no reference, or where the streams have the
    columns already.
    """
    if not recipe.task.reference or cache.train.columns or cache.sources[0].columns:
        return
    if not cache.train.complete:
        _tell(log, "waiting for the whole cache: the reference model has to see every example before the first step")
    cache.wait()
    check()  # before the minutes that a reference may take
    model = Reference(directory, recipe, built, state, log)
    sets = [(f"data.train ({name})", stream, source) for name, stream, source in data.streams()]
    validation = zip(cache.validation.items(), validation_sources(recipe), strict=True)
    sets += [(f"data.validation ({name})", stream, source) for (name, stream), source in validation]
    for name, stream, source in sets:
        path = cache.directory / "reference" / f"{key_of(recipe, stream, plan.compute, model.identity)}.f32"
        columns = _read(path, recipe.task.reference)
        if columns is None:
            if model.recorded == model.identity:
                _tell(log, f"reference: {path.name} is missing from the cache, or damaged: computing it again")
            columns = _computed(model, recipe, cache, stream, source, name, rows=plan.batch.micro * plan.batch.replicas)
            _write(path, columns)
        stream.columns.update(columns)


class Identity(NamedTuple):
    """What a reference is known by."""

    parameters: str
    """Digest of its arrays; of what is in 4 bit, of what that was packed from."""
    settings: dict[str, Any]
    """See `settings_of`."""


@dataclass
class Reference:
    """The frozen model, made when it is first needed."""

    directory: Path
    recipe: Recipe
    built: BuiltStep
    state: State
    log: EventLog

    @cached_property
    def recorded(self) -> Identity | None:
        """Return the identity that the run directory has; None where it has none."""
        try:
            found = json.loads((self.directory / FILE).read_bytes())
            # FORMAT 1 kept no settings
            return Identity(str(found["parameters"]), dict(found.get("settings", settings_of(self.recipe))))
        except FileNotFoundError:
            return None
        except (AttributeError, ValueError, KeyError, TypeError):
            _tell(self.log, f"{FILE} in the run directory is damaged: the reference is made again")
            return None

    @cached_property
    def identity(self) -> Identity:
        """Return the identity that the run directory has; before the first step, and without one, the model's own."""
        if self.recorded is not None and self.trained:
            return self.recorded
        parameters = base_digest(self.model, self.recipe)
        assert parameters is not None, "a model has parameters"
        found = Identity(parameters, settings_of(self.recipe))
        if self.recorded not in (None, found):
            _tell(self.log, f"reference: the model is not the one in {FILE}; no step was trained, so it replaces that")
        draft = self.directory / f".{FILE}.tmp"
        draft.write_text(json.dumps({"format": FORMAT, **found._asdict()}))
        draft.replace(self.directory / FILE)
        return found

    @cached_property
    def trained(self) -> bool:
        """Whether steps of this run were trained, so that its reference must stay as it is."""
        return int(self.state.step) > 0

    @cached_property
    def model(self) -> PyTree:
        """Return the model that the run began with, in the dtype in which it is kept.

        Raises TrainkitError where its settings or pretrained weights are not those that the run began with."""
        state = self.state
        if self.recipe.adapter is None and self.trained:
            _tell(self.log, "making the parameters that the run began with again, for the reference")
            key = jax.random.key(self.recipe.run.seed)
            weights = load_base(self.recipe, self.built.base, on=self.built.mesh)
            # the whole state by the same program as at the start of the run, so that the bits are the same
            state = new_state(self.built, key, weights)
        model = without_adapters(eqx.combine(state.params, state.frozen))
        if self.recorded is not None and self.trained:
            self._check(model, self.recorded)
        return model

    def _check(self, model: PyTree, recorded: Identity) -> None:
        where, problem = str(self.directory / FILE), "the reference is not the model that this run began with"
        # a key that a later version of trainkit added is in none of the earlier records
        changed = [key for key, now in settings_of(self.recipe).items() if recorded.settings.get(key, now) != now]
        if changed:
            hint = "bring the settings back as they were, or begin a new run"
            raise TrainkitError(f"{problem}: other values of {', '.join(changed)}", where=where, hint=hint)
        # the second is what a random model in 4 bit is known by, and any was in FORMAT 1
        if any(recorded.parameters == digest(tree) for tree in (sources(model), without_sources(model))):
            return
        if self.recipe.base_checkpoint is not None:
            raise TrainkitError(
                f"{problem}: its pretrained weights have changed",
                where=where,
                hint="bring the weights back as they were, or begin a new run",
            )
        _tell(self.log, "the reference is the model that this run began with to rounding, not bit for bit")


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return what the numbers of a model depend on beside its arrays, by recipe key, as JSON keeps it."""
    model = recipe.model.model_dump(mode="json", exclude={"pretrained", "revision"})
    packed = recipe.adapter.base if recipe.adapter else "none"
    return {**{f"model.{key}": value for key, value in model.items()}, "adapter.base": packed}


def key_of(recipe: Recipe, stream: Stream, compute: str, identity: Identity) -> str:
    """Return the name of a stream's file: a hash of everything that its numbers depend on."""
    sections = [(section.shard.key, section.entries) for section in stream.sections]
    data = [recipe.data.positions, recipe.data.encoding.model_dump(mode="json"), sections]
    task = [recipe.task.type, {name: list(shape) for name, shape in recipe.task.reference.items()}]
    code = [plugin_digest(recipe.task), plugin_digest(recipe.model)]
    return of_value([FORMAT, data, task, code, compute, identity.settings, identity.parameters])


def _computed(
    reference: Reference, recipe: Recipe, cache: Cache, stream: Stream, source: Source, name: str, *, rows: int
) -> dict[str, np.ndarray]:
    """Return the columns of a stream, `rows` examples at once, each device its own."""
    built, log = reference.built, reference.log
    batches = EvalSet(
        stream, source, recipe.data, cache.directory, batch_size=rows, name=name, shifted=recipe.task.shifted
    )
    parts = len(batches)
    total = sum(len(batches.examples(part)) for part in range(parts))
    columns = {name: np.zeros((total, *shape), np.float32) for name, shape in recipe.task.reference.items()}

    def compute(model: PyTree, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        rows = {name: array[0] for name, array in batch.items()}
        return built.task.reference(cast(model, built.compute), rows)

    compiled = jax.jit(compute, out_shardings=replicated_sharding(built.mesh))
    sharding, started = batch_sharding(built.mesh), time.perf_counter()
    _tell(log, f"reference: computing what the frozen model says of {total:,} examples of {name}")
    reported, done = started, 0
    for part in range(parts):
        arrays = to_device(batches.batch(part), accumulation=1, sharding=sharding)
        with jax.set_mesh(built.mesh):  # as in a step, by the mesh each device knows its rows
            found = jax.device_get(compiled(reference.model, arrays))
        which = batches.examples(part)
        done += len(which)
        for column, values in columns.items():
            values[which] = found[column][: len(which)]
        if (now := time.perf_counter()) - reported > REPORT_SECONDS:
            reported = now
            _tell(log, f"reference: {done:,} of {total:,} examples of {name}")
    _tell(log, f"reference: {total:,} examples of {name} took {time.perf_counter() - started:.1f} s")
    return columns


def _write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    content = b"".join(columns[name].astype("<f4").tobytes() for name in sorted(columns))
    with writing(path) as out:
        out.write(content)
    examples = len(next(iter(columns.values())))
    with writing(path.with_suffix(".json")) as out:
        out.write(json.dumps({"examples": examples, "crc32": zlib.crc32(content)}).encode())


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray] | None:
    """Return the columns in a file; None where there is none, or it is not what was written."""
    try:
        told: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
        content, examples = path.read_bytes(), int(told["examples"])
        whole = zlib.crc32(content) == told["crc32"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sizes = [examples * math.prod(shapes[name]) for name in sorted(shapes)]
    if not whole or len(content) != 4 * sum(sizes):
        return None
    parts = np.split(np.frombuffer(content, "<f4"), np.cumsum(sizes)[:-1])
    return {name: part.reshape(examples, *shapes[name]) for name, part in zip(sorted(shapes), parts, strict=True)}


def _tell(log: EventLog, message: str) -> None:
    log.write("log", step=log.step, level="info", message=message)
