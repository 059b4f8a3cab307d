"""The frozen reference model of a task: computed once for every example, before the first step, and kept in the cache.

The reference is the model that the run begins with, without its adapter. `RUN/reference.json` records the digest of its
parameters and its settings. A resumed run has other parameters, so it finds the numbers in the cache by that record; if
they are missing, it makes the parameters again. Before the first step nothing depends on the reference, so it is always
that of the present model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
from jaxtyping import PyTree

from trainkit import files
from trainkit.checkpoint.leaves import digest
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet, validation_sources
from trainkit.data.cache.columns import Columns, read_columns, read_progress, write_columns, write_progress
from trainkit.data.cache.stream import Stream
from trainkit.data.cache.token_cache import Cache
from trainkit.data.sources.digests import of_value
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.hub.load import base_digest, load_base
from trainkit.models.adapters import without_adapters
from trainkit.models.casting import cast
from trainkit.models.nf4 import sources, without_sources
from trainkit.parallel import hosts
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Source
from trainkit.recipe.spec import plugin_digest
from trainkit.train.build import BuiltStep, new_state
from trainkit.train.prefetch import whole_to_device
from trainkit.train.program import Program
from trainkit.train.state import State

#: Increase it when the same model and data would give other numbers than before.
FORMAT = 2
#: The identity of the reference, in the run directory.
FILE = "reference.json"
#: Seconds between two reports of progress. What is computed up to a report is not computed again after a kill.
REPORT_SECONDS = 10.0


class ReferencedSet(NamedTuple):
    """A stream, and the source that says how its examples are made."""

    name: str
    stream: Stream
    source: Source


def attach_reference(
    directory: Path,
    recipe: Recipe,
    cache: Cache,
    data: TrainSet,
    program: Program,
    state: State,
    *,
    check: Callable[[], None],
    log: EventLog,
) -> None:
    """Give each stream of a run the columns that its task compares with, so that all batches contain them.

    Waits for the whole cache, then calls `check`, which raises if training would learn nothing. Columns that are not in
    the cache are computed, stream by stream. Does nothing if the task needs no reference, or the columns are there.
    """
    if not recipe.task.reference or cache.train.columns or cache.sources[0].columns:
        return
    if not cache.train.complete:
        log_info(log, "waiting for the whole cache: the reference model has to see every example before the first step")
    cache.wait()
    check()  # before the minutes that a reference may take
    reference = Reference(directory, recipe, program.built, state, log)
    for examples in sets_of(recipe, cache, data):
        reference.attach(examples, cache.directory, program.plan)


def check_reference(reference: Reference, cache: Cache, data: TrainSet, plan: Plan) -> None:
    """Raise TrainkitError if columns of a resumed run have to be computed again, and its reference has changed."""
    cache.wait()
    if not all(reference.is_cached(each, cache.directory, plan) for each in sets_of(reference.recipe, cache, data)):
        reference.check()


def sets_of(recipe: Recipe, cache: Cache, data: TrainSet) -> list[ReferencedSet]:
    """Return the training sources and the validation sets of a run."""
    training = [ReferencedSet(f"data.train ({name})", stream, source) for name, stream, source in data.streams()]
    return training + validation_sets(recipe, cache)


def validation_sets(recipe: Recipe, cache: Cache) -> list[ReferencedSet]:
    """Return the validation sets of a run."""
    sets = zip(cache.validation.items(), validation_sources(recipe), strict=True)
    return [ReferencedSet(f"data.validation ({name})", stream, source) for (name, stream), source in sets]


class ProgressLog(Protocol):
    """Where progress is reported: the log of a run, or a substitute."""

    step: int

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        """Append one event; see `EventLog.write`."""


class Identity(NamedTuple):
    """What identifies a reference."""

    parameters: str
    """Digest of its arrays; for arrays in 4 bit, of those that they were packed from."""
    settings: dict[str, Any]
    """See `settings_of`."""


@dataclass
class Reference:
    """The frozen model, loaded when it is first needed."""

    directory: Path
    recipe: Recipe
    built: BuiltStep
    state: State
    log: ProgressLog

    @cached_property
    def recorded(self) -> Identity | None:
        """Return the identity in the run directory; None without one."""
        try:
            record = files.read_json(self.directory / FILE)
            # FORMAT 1 kept no settings
            return Identity(str(record["parameters"]), dict(record.get("settings", settings_of(self.recipe))))
        except FileNotFoundError:
            return None
        except (AttributeError, ValueError, KeyError, TypeError):
            log_info(self.log, f"{FILE} in the run directory is damaged: the reference is computed again")
            return None

    @cached_property
    def identity(self) -> Identity:
        """The identity in the run directory; before the first step, and without one, that of the present model."""
        if self.recorded is not None and self.trained:
            return self.recorded
        parameters = base_digest(self.model, self.recipe)
        assert parameters is not None, "a model has parameters"
        present = Identity(parameters, settings_of(self.recipe))
        if self.recorded not in (None, present):
            log_info(self.log, f"reference: the model differs from {FILE}; it replaces it, as no step was trained yet")
        if jax.process_index() == 0:
            files.write_json(self.directory / FILE, {"format": FORMAT, **present._asdict()})
        return present

    @cached_property
    def trained(self) -> bool:
        """Return whether this run has trained a step, so that its reference must not change."""
        return int(self.state.step) > 0

    @cached_property
    def model(self) -> PyTree:
        """Return the model that the run began with, in the dtype of its parameters.

        Raises TrainkitError if its settings or pretrained weights are not those that the run began with.
        """
        params = self.state.params
        if self.recipe.adapter is None and self.trained:
            log_info(self.log, "making the parameters that the run began with again, for the reference")
            key = jax.random.key(self.recipe.run.seed)
            weights = load_base(self.recipe, self.built.base, on=self.built.mesh)
            # the parameters alone: a second optimizer state may not fit beside that of the run
            params = new_state(self.built, key, weights, part="params")
        model = without_adapters(eqx.combine(params, self.state.frozen))
        if self.recorded is not None and self.trained:
            self._check(model, self.recorded)
        return model

    def attach(self, examples: ReferencedSet, cache: Path, plan: Plan) -> None:
        """Give a stream its columns: those in the `cache`, or computed ones."""
        name, stream, source = examples
        path, recipe = self._path(examples, cache, plan), self.recipe
        # the first process writes the file, perhaps before another process looks for it
        cached = hosts.from_first(lambda: self.is_cached(examples, cache, plan))
        columns = read_columns(path, recipe.task.reference) if cached else None
        if columns is None:
            if self.recorded == self.identity:
                log_info(self.log, f"reference: {path.name} is not complete in the cache, or damaged: computing it")
            rows = plan.batch.micro * plan.batch.replicas
            shifted = recipe.task.shifted
            batches = EvalSet(stream, source, recipe.data, cache, batch_size=rows, name=name, shifted=shifted)
            columns = self.compute(batches, path, name, rows=rows)
        stream.columns.update(columns)

    def is_cached(self, examples: ReferencedSet, cache: Path, plan: Plan) -> bool:
        """Return whether the columns of a stream are in the `cache`."""
        return read_columns(self._path(examples, cache, plan), self.recipe.task.reference) is not None

    def _path(self, examples: ReferencedSet, cache: Path, plan: Plan) -> Path:
        return cache / "reference" / f"{key_of(self.recipe, examples.stream, plan.compute, self.identity)}.f32"

    def check(self) -> None:
        """Raise TrainkitError if the model is not the one that the run began with."""
        _ = self.model

    def compute(self, examples: EvalSet, path: Path, name: str, *, rows: int) -> Columns:
        """Return the columns of a set, computed `rows` examples at a time, and write them to `path`.

        Progress is written too, so that the next process continues after a kill.
        """
        built, batches = self.built, range(len(examples))
        total = sum(len(examples.examples(batch)) for batch in batches)
        columns, first = read_progress(path, self.recipe.task.reference, examples=total, rows=rows)

        def compute(model: PyTree, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            rows = {name: array[0] for name, array in batch.items()}
            return built.task.reference(cast(model, built.compute), rows)

        compiled = jax.jit(compute, out_shardings=replicated_sharding(built.mesh))
        sharding, started = batch_sharding(built.mesh), time.perf_counter()
        done = sum(len(examples.examples(batch)) for batch in batches[:first])
        message = f"reference: computing what the frozen model says of {total:,} examples of {name}"
        log_info(self.log, message + (f", continuing after {done:,}" if done else ""))
        writes, reported = jax.process_index() == 0, started
        for batch in batches[first:]:
            arrays = whole_to_device(examples.batch(batch), sharding=sharding)
            with jax.set_mesh(built.mesh):  # `on_own_rows` needs the mesh
                values = jax.device_get(compiled(self.model, arrays))
            which = examples.examples(batch)
            done += len(which)
            for column, array in columns.items():
                array[which] = values[column][: len(which)]
            if (now := time.perf_counter()) - reported > REPORT_SECONDS:
                reported = now
                if writes:
                    write_progress(path, columns, rows=rows, batches=batch + 1)
                log_info(self.log, f"reference: {done:,} of {total:,} examples of {name}")
        log_info(self.log, f"reference: {total:,} examples of {name} took {time.perf_counter() - started:.1f} s")
        if writes:
            write_columns(path, columns)
        return columns

    def _check(self, model: PyTree, recorded: Identity) -> None:
        where, problem = str(self.directory / FILE), "the reference is not the model that this run began with"
        # earlier records lack the keys of later versions
        changed = [key for key, now in settings_of(self.recipe).items() if recorded.settings.get(key, now) != now]
        if changed:
            hint = "bring the settings back as they were, or begin a new run"
            raise TrainkitError(f"{problem}: other values of {', '.join(changed)}", where=where, hint=hint)
        # the second digest is that of a random model in 4 bit, and of all models in FORMAT 1
        if any(recorded.parameters == digest(tree) for tree in (sources(model), without_sources(model))):
            return
        if self.recipe.base_checkpoint is not None:
            raise TrainkitError(
                f"{problem}: its pretrained weights have changed",
                where=where,
                hint="bring the weights back as they were, or begin a new run",
            )
        log_info(self.log, "the reference is the model that this run began with to rounding, not bit for bit")


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return what a model's numbers depend on besides its arrays, by recipe key, as JSON."""
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


def log_info(log: ProgressLog, message: str) -> None:
    """Write a message to the log."""
    log.write("log", step=log.step, level="info", message=message)
