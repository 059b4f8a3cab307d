"""Recipe → plan → dataset, model, optimizer, state → loop: the picture of `docs/architecture.md` in code."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path

import jax

from trainkit.checkpoint import store
from trainkit.checkpoint.leaves import digest
from trainkit.checkpoint.provenance import Provenance, size_of
from trainkit.data import recorded
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.data.cache.token_cache import Cache
from trainkit.data.jobs import CachingProgress
from trainkit.data.tokenizer.load import peek
from trainkit.events.control import Server
from trainkit.events.log import EventLog
from trainkit.export.background import Exporting
from trainkit.hub.load import base_digest, check_weights
from trainkit.infer.text_format import check_texts
from trainkit.parallel import hosts
from trainkit.parallel.devices import agree_on_memory
from trainkit.parallel.xla import use_compile_cache
from trainkit.plan.proposal import smaller_plan
from trainkit.recipe import Recipe
from trainkit.recipe.toml.load import Loaded
from trainkit.recipe.toml.values import dumps
from trainkit.run.health import DataHealth, DiskSpace, Health, start_trackers
from trainkit.run.job import Attempt, LoopEnd, provenance_of, run_loop
from trainkit.run.prepare import Restart, prepare_training
from trainkit.run.rollback import count_rollbacks, left_out_steps, roll_back
from trainkit.run.start import Start
from trainkit.rundir.directory import tokenizer_checksum
from trainkit.tasks import check_tokenizer
from trainkit.tasks.text_metrics import build_text_metrics
from trainkit.track.projections import enabled_trackers, require
from trainkit.train.build import build, model_shapes
from trainkit.train.planning import UNKNOWN_SIZE, plan_of
from trainkit.train.profile import check_steps
from trainkit.train.shared import SharedServer, SharedSignals
from trainkit.train.signals import Signals
from trainkit.train.state import State, without_frozen
from trainkit.train.verdicts import Rollback


def train(
    directory: Path,
    loaded: Loaded,
    start: Start,
    *,
    signal: Signals,
    log: EventLog,
    afterwards: contextlib.ExitStack,
) -> LoopEnd:
    """Train to the end of the run, or until it is stopped, and return how the loop ended. Save a checkpoint first.

    What must wait until the end of the attempt is in the log is pushed onto `afterwards`.
    """
    recipe = loaded.recipe
    check_before_data(recipe, start, done=log.step if start.step is None else start.step)
    use_compile_cache()
    agree_on_memory(recipe.parallel.platform)

    newest = store.newest(directory)
    with_tokenizer = recorded.with_own_tokenizer(recipe, directory) if newest else recipe
    cache = hosts.first_goes(partial(_tokens, with_tokenizer, log, resumed=newest is not None))
    afterwards.callback(cache.close)
    data, data_health = TrainSet(cache, recipe), DataHealth(cache, recipe, log)
    prepare = partial(
        prepare_training, directory, loaded, cache=cache, data=data, check_data=data_health.check, log=log
    )
    ready = prepare(start)

    if hosts.is_first():
        recorded.keep(cache, directory)
    disk = _disk_space(directory, recipe, ready.state, log)
    trackers = start_trackers(directory, recipe.track, log, afterwards)  # only now, to leave the CPU to the compiler
    facts = _provenance(directory, loaded, cache, ready.state, began=newest, log=log)
    with contextlib.closing(SharedServer(Server(directory) if hosts.is_first() else None)) as server:
        attempt = Attempt(
            directory=directory,
            recipe=recipe,
            cache=cache,
            data=data,
            provenance=partial(provenance_of, facts, trackers, log),
            exporting=Exporting(directory, recipe, first=int(ready.state.step), log=log) if recipe.export else None,
            server=server,
            signal=SharedSignals(signal),
            health=Health(cache, trackers, data_health, disk, log),
            left_out=hosts.from_first(lambda: left_out_steps(directory)),
            rollbacks=hosts.from_first(lambda: count_rollbacks(directory)),
            log=log,
        )
        signal.training_begins()
        end, measures = run_loop(ready, start, attempt), True
        while (outcome := end.outcome).starts_again:  # a resume in this process
            failed, rollback = ready.program.plan, outcome.rollback
            measures &= not outcome.measuring
            attempt = attempt if rollback is None else _roll_back(attempt, rollback)
            plan = failed if outcome.measuring or rollback is not None else smaller_plan(recipe, failed)
            del ready  # the new state needs its memory
            start = start.again(directory, log=log)
            ready = prepare(start, restart=Restart(failed, plan, outcome.step, rollback is not None, measures))
            end = run_loop(ready, start, attempt, before=end.commands)
        return end


def _roll_back(attempt: Attempt, rollback: Rollback) -> Attempt:
    """Leave the run with good checkpoints and exports only, and return the attempt without the steps to leave out."""
    roll_back(attempt.directory, rollback, attempt.log)
    if attempt.exporting:
        attempt.exporting.go_back(beyond=rollback.left_out[0] - 1)
    left_out = tuple(sorted({*attempt.left_out, *rollback.left_out}))
    return attempt._replace(left_out=left_out, rollbacks=attempt.rollbacks + 1)


def _disk_space(directory: Path, recipe: Recipe, state: State, log: EventLog) -> DiskSpace:
    """Return what watches whether the disk has room for the checkpoints of a run."""
    kept = recipe.checkpoint.keep_last + (recipe.checkpoint.best is not None)
    kept += 2 * (recipe.guard.goes_back is not None)
    saved = without_frozen(state)
    return DiskSpace(directory, size_of(saved), log, keep_last=kept, arrays=len(jax.tree.leaves(saved)))


def _provenance(
    directory: Path, loaded: Loaded, cache: Cache, state: State, *, began: store.Info | None, log: EventLog
) -> Provenance:
    """Return what the checkpoints of an attempt record, with `began`, the newest one when it began."""
    return Provenance(
        recipe=loaded.recipe.fingerprint(),
        data=cache.fingerprint,
        attempt=log.attempt,
        base=base_digest(state.frozen, loaded.recipe),
        began_with=began.manifest.began_with if began else _log_parameters(loaded.recipe, state, log),
        recipe_text=dumps(loaded.recipe, loaded.origins, loaded.path),
        tokenizer=tokenizer_checksum(directory),
    )


def check_before_data(recipe: Recipe, start: Start, *, done: int) -> None:
    """Raise TrainkitError for errors of a run that are known before anything is tokenised. `done` steps are done."""
    for tracker in enabled_trackers(recipe.track):
        if tracker != "aim":  # it is installed with trainkit; if it is missing nevertheless, an alert says so
            require(tracker)
    recipe.train.check_time(datetime.now())
    recipe.task.check_documents(recipe.data.train)
    build_text_metrics(recipe.evaluate.metrics)  # their libraries may be missing
    if recipe.task.masks and (codec := peek(recipe)) is not None:
        check_tokenizer(recipe.task, codec)
    if recipe.tokenizer is not None and recipe.tokenizer.new_tokens and (codec := peek(recipe)) is not None:
        recipe.model.rows(codec.vocab_size)  # the embedding may have no rows for them
    if recipe.train.steps is not None:  # a command may end the run earlier: `prepare_training` checks again
        check_steps(start.profile, done=done, total=recipe.train.steps)


def _tokens(recipe: Recipe, log: EventLog, *, resumed: bool) -> Cache:
    """Return the tokens. If training may start early, the later ones are made in the background."""
    cache = caches.find(recipe)
    if cache is None:
        rehearse(recipe, resumed=resumed)
        # several processes see the same data at each step only once all of it is tokenised
        early = caches.may_start_early(recipe) and hosts.count() == 1
        make = caches.begin if early else caches.build
        cache = make(recipe, progress=partial(_report_progress, log))
    return cache


def rehearse(recipe: Recipe, *, resumed: bool) -> None:
    """Raise TrainkitError for errors that tokenising would only delay: devices, batch, optimizer, weights, templates.

    Nothing here depends on the data, which is still unknown.
    """
    if not resumed and recipe.data.is_text:  # a resumed run has its own copies
        check_texts(recipe)
    built = build(recipe, plan_of(recipe, vocab_size=1, data=UNKNOWN_SIZE))
    check_weights(recipe, built.base, model_shapes(built), resumed=resumed)


def _log_parameters(recipe: Recipe, state: State, log: EventLog) -> str | None:
    """Log which parameters of another run a new run begins with, and return their digest; None if there are none."""
    if recipe.run.parameters_from is None:
        return None
    found = digest(state.params)
    which = "the averages" if recipe.run.average_from else "those"
    message = f"the parameters are {which} of {recipe.run.parameters_from} (digest {found}); the optimizer state is new"
    log.write("log", step=log.step, level="info", message=message)
    return found


def _report_progress(log: EventLog, progress: CachingProgress) -> None:
    log.write("cache_progress", step=log.step, **asdict(progress))
