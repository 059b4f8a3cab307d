"""What a frozen reference model says of every example: computed once, before the first step, and kept in the cache.

    CACHE/reference/KEY.f32    the numbers of one stream's examples, in stored order: float32, little-endian
    CACHE/reference/KEY.json   their number and checksum, written last
    RUN/reference.json         the digest of the parameters that they were computed with

The reference is the model that the run begins with, without its adapter. A run that resumes has other parameters, so it
finds the file by the digest in its own directory; where the file is gone, the parameters are made again.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from trainkit.checkpoint.digest import digest
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet, validation_sources
from trainkit.data.cache.build import Cache
from trainkit.data.cache.stream import Stream
from trainkit.data.sources.digests import of_value
from trainkit.data.storage import writing
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.hub.pretrained import load_base
from trainkit.models.adapters import without_adapters
from trainkit.models.casting import cast
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Source
from trainkit.train.build import BuiltStep, new_state
from trainkit.train.prefetch import to_device
from trainkit.train.state import State

#: Raise it when the same model and data would give other numbers than before.
FORMAT = 1
#: The digest of the reference's parameters, in the run directory.
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
    log: EventLog,
) -> None:
    """Give the streams of a run the columns that its task compares with, so that all batches have them.

    Waits for the whole cache. What is not in the cache already is computed, set by set. Does nothing where the task
    needs no reference, or where the streams have the columns already.
    """
    if not recipe.task.reference or cache.train.columns or cache.sources[0].columns:
        return
    if not cache.train.complete:
        _tell(log, "waiting for the whole cache: the reference model has to see every example before the first step")
    cache.wait()
    model = Reference(directory, recipe, built, state, log)
    sets = [(f"data.train ({name})", stream, source) for name, stream, source in data.streams()]
    validation = zip(cache.validation.items(), validation_sources(recipe), strict=True)
    sets += [(f"data.validation ({name})", stream, source) for (name, stream), source in validation]
    for name, stream, source in sets:
        path = cache.directory / "reference" / f"{key_of(recipe, stream, plan.compute, model.digest)}.f32"
        columns = _read(path, recipe.task.reference)
        if columns is None:
            if model.recorded is not None:
                _tell(log, f"reference: {path.name} is missing from the cache, or damaged: computing it again")
            columns = _computed(model, recipe, cache, stream, source, name, rows=plan.batch.micro * plan.batch.replicas)
            _write(path, columns)
        stream.columns.update(columns)


@dataclass
class Reference:
    """The frozen model, made when it is first needed."""

    directory: Path
    recipe: Recipe
    built: BuiltStep
    state: State
    log: EventLog

    @cached_property
    def recorded(self) -> str | None:
        """Return the digest that the run directory has; None where it has none."""
        try:
            return str(json.loads((self.directory / FILE).read_bytes())["parameters"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            _tell(self.log, f"{FILE} in the run directory is damaged: the reference is made again")
            return None

    @cached_property
    def digest(self) -> str:
        """Return the digest of the parameters: the one that the run directory has, or that of the model itself."""
        if self.recorded is not None:
            return self.recorded
        found = digest(self.model)
        assert found is not None, "a model has parameters"
        draft = self.directory / f".{FILE}.tmp"
        draft.write_text(json.dumps({"format": FORMAT, "parameters": found}))
        draft.replace(self.directory / FILE)
        return found

    @cached_property
    def model(self) -> PyTree:
        """Return the model that the run began with, in the dtype in which it is kept.

        Raises TrainkitError where its pretrained weights are not those that the run began with."""
        state = self.state
        if self.recipe.adapter is None and int(state.step):
            _tell(self.log, "making the parameters that the run began with again, for the reference")
            key = jax.random.key(self.recipe.run.seed)
            weights = load_base(self.recipe, self.built.base, on=self.built.mesh)
            # the whole state by the same program as at the start of the run, so that the bits are the same
            state = new_state(self.built, key, weights)
        model = without_adapters(eqx.combine(state.params, state.frozen))
        if self.recorded is not None and self.recorded != digest(model):
            if self.recipe.base_checkpoint is not None:
                raise TrainkitError(
                    "the reference is not the model that this run began with: its pretrained weights have changed",
                    where=str(self.directory / FILE),
                    hint="bring the weights back as they were, or begin a new run",
                )
            _tell(self.log, "the reference is the model that this run began with to rounding, not bit for bit")
        return model


def key_of(recipe: Recipe, stream: Stream, compute: str, parameters: str) -> str:
    """Return the name of a stream's file: a hash of everything that its numbers depend on."""
    sections = [(section.shard.key, section.entries) for section in stream.sections]
    data = [recipe.data.positions, recipe.data.encoding.model_dump(mode="json"), sections]
    task = [recipe.task.type, {name: list(shape) for name, shape in recipe.task.reference.items()}]
    return of_value([FORMAT, data, task, compute, parameters])


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
