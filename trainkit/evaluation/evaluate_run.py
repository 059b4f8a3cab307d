"""Evaluation of a run's checkpoint: on the validation sets, as during training, or on other data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from trainkit.checkpoint import restore
from trainkit.checkpoint.store import Info, read_checkpoint
from trainkit.data import recorded
from trainkit.data.batches.evaluation_set import EvalSet, evaluation_sets
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.checks import find_evaluation_problems
from trainkit.data.jobs import Tell
from trainkit.errors import TrainkitError
from trainkit.evaluation.evaluator import Evaluator
from trainkit.evaluation.other_data import sources_to_evaluate
from trainkit.evaluation.results import result_writer
from trainkit.evaluation.targets import text_report
from trainkit.hub.load import check_same_base, load_base
from trainkit.infer.adapted import Weights
from trainkit.infer.trained_model import weights_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.source import Source
from trainkit.rundir.directory import recipe_of
from trainkit.tasks import build as build_task
from trainkit.tasks import check_tokenizer
from trainkit.train.build import BuiltStep, build, new_state, state_shapes
from trainkit.train.planning import UNKNOWN_SIZE, plan_of
from trainkit.train.reference import Reference, ReferencedSet, validation_sets
from trainkit.train.state import State

Results = dict[str, dict[str, float]]
"""The metrics of each set, by its name."""


def evaluate_run(
    directory: Path,
    step: int | None,
    *,
    data: Sequence[str] = (),
    split: str | None = None,
    predictions: bool = False,
    average: bool | None = None,
    overrides: Sequence[str] = (),
    progress: Tell = None,
    warn: Callable[[str], None],
) -> tuple[int, Results]:
    """Evaluate a checkpoint of a run, write the results into the run's `results/`, and return its step and the metrics.

    Args:
        step: None for the newest checkpoint.
        data: paths of files, or one id of a Hugging Face data set, whose rows are like those of the first training
            source; empty for the validation sets of the recipe.
        split: of the data set that the run was trained on, or of `data`.
        predictions: whether to write every prediction beside the metrics.
        average: as for `weights_of`.
        overrides: `evaluate.KEY=VALUE`.
        warn: called with what a person should know.

    Raises:
        TrainkitError: there is no such checkpoint, or it cannot be evaluated on this data.
    """
    recipe = recipe_to_evaluate(directory, overrides)
    if predictions:
        if not recipe.evaluate.predictable(recipe.task):
            raise TrainkitError(
                f'--predictions: task.type = "{recipe.task.type}" makes no predictions', hint="leave it out"
            )
        recipe = recipe.model_copy(update={"evaluate": recipe.evaluate.model_copy(update={"predictions": True})})
    recipe = recorded.with_own_tokenizer(recipe, directory)
    parts = [_on(recipe, source) for source in sources_to_evaluate(recipe, data, split)] or [recipe]
    if parts == [recipe] and not recipe.data.validation_names:
        raise TrainkitError(
            "the recipe has no validation set", where=str(directory), hint="name other data: --data PATH"
        )

    def evaluate(info: Info) -> tuple[int, Results]:
        results, weights = Results(), weights_of(info, recipe, average=average)
        for part in parts:
            # data that replaces the validation sets is the training set of another recipe
            named = None if part is recipe else str(part.data.train[0].name)
            results |= _evaluate(directory, info, part, weights=weights, named=named, progress=progress, warn=warn)
        return info.step, results

    return read_checkpoint(directory, step, evaluate)


def recipe_to_evaluate(directory: Path, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run with keys of `[evaluate]` overridden. Raises TrainkitError for other keys."""
    for override in overrides:
        if not override.startswith("evaluate."):
            raise TrainkitError(
                f"--set {override}: an evaluation cannot change the run", hint="set only keys of [evaluate]"
            )
    return recipe_of(directory, overrides).recipe


def _on(recipe: Recipe, source: Source) -> Recipe:
    """Return the recipe with one source, and all of its rows in the training set."""
    alone = source.model_copy(update={"weight": None})
    only = recipe.data.model_copy(update={"train": (alone,), "validation": (), "held_out": 0.0})
    return recipe.model_copy(update={"data": only})


def _evaluate(
    directory: Path,
    info: Info,
    recipe: Recipe,
    *,
    weights: Weights,
    named: str | None,
    progress: Tell,
    warn: Callable[[str], None],
) -> Results:
    """Evaluate on the validation sets or, where a name is given, on the training set under this name."""
    cache = caches.build(recipe, progress=progress)
    try:
        if cache.tokenizer is not None:
            check_tokenizer(recipe.task, cache.tokenizer)
        if named is not None:
            _check_data(cache, recipe, named, warn)
        plan = plan_of(recipe, vocab_size=cache.vocab_size, data=UNKNOWN_SIZE, directory=directory)
        built = build(recipe, plan, task=build_task(recipe.task, cache.tokenizer))
        state = _parameters(directory, info, recipe, built, weights=weights)
        log = _Warnings(warn, info.step)
        if recipe.task.reference:
            reference = Reference(directory, recipe, built, state, log)
            training = ReferencedSet(str(named), cache.train, recipe.data.train[0])
            for examples in validation_sets(recipe, cache) if named is None else [training]:
                reference.attach(examples, cache.directory, plan)
        at_once = recipe.evaluate.batch_size or plan.batch.micro * plan.batch.replicas
        if named is None:
            sets = evaluation_sets(cache.directory, cache.validation, recipe, at_once=at_once)
        else:
            sets = {named: _training_set(cache, recipe, at_once=at_once, name=named)}
        evaluate = Evaluator(
            sets,
            batch_size=at_once,
            task=built.task,
            compares=recipe.task.least_rows > 1,
            metrics=built.metrics,
            tags=recipe.evaluate.tags if named is None else {},
            compute=built.compute,
            mesh=built.mesh,
            log=log,
            interrupted=lambda: False,
            results=result_writer(directory, recipe, cache, average=weights == "averages", training_set=named),
            texts=text_report(
                recipe,
                directory,
                cache.tokenizer,
                compute=built.compute,
                mesh=built.mesh,
                interrupted=lambda: False,
                alert=warn,
            ),
        )
        return evaluate(state, info.step)
    finally:
        cache.close()


def _check_data(cache: Cache, recipe: Recipe, name: str, warn: Callable[[str], None]) -> None:
    """Make the checks that a run makes of its validation sets. Raises TrainkitError if the data cannot be evaluated."""
    for problem in find_evaluation_problems(cache, recipe, name):
        if problem.level == "error":
            raise TrainkitError(problem.message, where="--data", hint="leave these rows out")
        if problem.level == "warning":
            warn(problem.message)


def _training_set(cache: Cache, recipe: Recipe, *, at_once: int, name: str) -> EvalSet:
    return EvalSet(
        cache.train,
        recipe.data.train[0],
        recipe.data,
        cache.directory,
        name=name,
        batch_size=recipe.evaluate.batch_size or recipe.train.batch_size,
        at_once=at_once,
        max_batches=recipe.evaluate.max_batches,
        seed=recipe.run.seed,
        shifted=recipe.task.shifted,
    )


def _parameters(directory: Path, info: Info, recipe: Recipe, built: BuiltStep, *, weights: Weights) -> State:
    """Return a state with the weights and the key of a checkpoint, and no optimizer state."""
    shapes = state_shapes(built)
    template = shapes.params if weights == "params" else jax.tree.map(_in_float32, shapes.params)
    params = restore.restore(info.directory, template, under=weights)
    key = restore.restore(info.directory, shapes.key, under="key")
    frozen: PyTree = shapes.frozen
    if jax.tree.leaves(frozen):
        base = load_base(recipe, built.base, on=built.mesh)
        frozen = new_state(built, jax.random.key(recipe.run.seed), base, part="frozen")
    check_same_base(info.manifest, frozen, where=directory)
    return State(params, frozen, (), jnp.int32(info.step), key, shapes.live)


def _in_float32(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, jnp.float32, sharding=shape.sharding)


class _Warnings:
    """Stands in for a run's log, and passes on only alerts."""

    def __init__(self, warn: Callable[[str], None], step: int) -> None:
        self._warn, self.step = warn, step

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        if kind == "alert":
            self._warn(fields["message"])
