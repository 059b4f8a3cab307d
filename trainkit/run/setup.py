"""Recipe → plan → dataset, model, optimizer, state → loop: the design's picture in code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainkit.checkpoint import store
from trainkit.checkpoint.saver import Provenance, size_of
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import EvalSet, validation_sources
from trainkit.data.cache import build as caches
from trainkit.data.cache import recorded
from trainkit.data.tokenizer.load import peek
from trainkit.events.control import Server
from trainkit.events.log import EventLog
from trainkit.export.background import Exporting
from trainkit.infer.adapted import base_digest
from trainkit.infer.sampler import Sampler
from trainkit.infer.text_format import (
    chat_of,
    check_texts,
    template_of,
    text_format_of,
    usable_template,
)
from trainkit.parallel import devices, mesh
from trainkit.parallel.compile_cache import use_compile_cache
from trainkit.plan import DataSize, Plan, make_plan
from trainkit.recipe import Recipe
from trainkit.recipe.sections import upkeep
from trainkit.recipe.toml.load import Loaded
from trainkit.run.health import DataHealth, DiskSpace
from trainkit.run.out_of_memory import Restart, smaller_plan, start_again
from trainkit.run.prepare import Ready, prepare_training
from trainkit.run.pretrained import check_weights
from trainkit.run.program import BuiltStep, build
from trainkit.run.start import Start
from trainkit.tasks import check_tokenizer
from trainkit.track.projections import asked, require
from trainkit.track.sidecar import Sidecars
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.compilations import Compilations
from trainkit.train.control import Commands
from trainkit.train.evaluate import Evaluator
from trainkit.train.loop import Job, SampleReport
from trainkit.train.loop import train as run_loop
from trainkit.train.metrics import MetricsWriter, StepWork
from trainkit.train.owed import owed
from trainkit.train.prefetch import Prefetch
from trainkit.train.profile import Profile, check_steps
from trainkit.train.signals import Signals
from trainkit.train.state import without_frozen
from trainkit.train.statistics import ParameterHistograms

#: How long the end of a run waits for its trackers, and after a SIGTERM for its exports.
SIDECAR_SECONDS = 60.0
#: How long the last checkpoint of a short run waits for Aim to say which of its runs this one is.
AIM_HASH_SECONDS = 20.0


def train(
    directory: Path,
    loaded: Loaded,
    start: Start,
    *,
    signal: Signals,
    log: EventLog,
    afterwards: contextlib.ExitStack,
) -> bool:
    """Train to the last step (True) or to where the run is stopped (False), with a checkpoint either way.

    What has to wait until the end of the attempt is in the log is pushed on `afterwards`.
    """
    recipe = loaded.recipe
    _check(recipe, start, done=log.step)
    use_compile_cache()
    resumed = store.newest(directory) is not None
    cache = _cached(recorded.with_own_tokenizer(recipe, directory) if resumed else recipe, log, resumed=resumed)
    afterwards.callback(cache.close)
    data = TrainSet(cache, recipe)
    ready = prepare_training(directory, loaded, start, cache, data, log=log)
    recorded.keep(cache, directory)
    first = int(ready.state.step)
    findings = DataHealth(cache, recipe, log)
    data.batch(first)  # the first window is there, so that there is something to look at
    findings.look()
    disk = DiskSpace(directory, size_of(without_frozen(ready.state)), log, keep_last=recipe.checkpoint.keep_last)

    sidecars = _sidecars(directory, recipe, log, afterwards)
    base = base_digest(ready.state.frozen, recipe)
    with contextlib.ExitStack() as opened:
        exporting = Exporting(directory, recipe, first=first, log=log) if recipe.export else None
        server = Server(directory)
        opened.callback(server.close)
        resources = Resources(
            directory=directory,
            recipe=recipe,
            cache=cache,
            data=data,
            facts=partial(_facts, recipe, cache.fingerprint, base, sidecars, log),
            exporting=exporting,
            server=server,
            signal=signal,
            watch_helpers=lambda step: _watch(cache, sidecars, findings, disk, log, step),
            log=log,
        )
        signal.training_begins()
        ended = _run_once(ready, start, resources)
        while ended.out_of_memory:
            failed = ready.program.plan
            del ready  # its state would take the room that the next one needs
            again = Restart(failed, smaller_plan(recipe, failed), ended.step)
            start = start_again(directory, start, log=log)
            ready = prepare_training(directory, loaded, start, cache, data, again=again, log=log)
            ended = _run_once(ready, start, resources, before=ended.orders)
        return ended.done


class Resources(NamedTuple):
    """What lasts for a whole attempt, also where it starts again because memory ran out."""

    directory: Path
    recipe: Recipe
    cache: caches.Cache
    data: TrainSet
    facts: Callable[[bool], Provenance]
    exporting: Exporting | None
    server: Server
    signal: Signals
    watch_helpers: Callable[[int], None]
    log: EventLog


class LoopEnd(NamedTuple):
    """How training ended: out of memory after `step` steps had been dispatched, or `done` or not."""

    done: bool
    out_of_memory: bool
    step: int
    orders: Commands


def _run_once(ready: Ready, start: Start, resources: Resources, *, before: Commands | None = None) -> LoopEnd:
    """Run the loop. `before` took the commands until memory ran out."""
    directory, recipe, log = resources.directory, resources.recipe, resources.log
    cache, data, exporting = resources.cache, resources.data, resources.exporting
    course, program = ready.course, ready.program
    plan, built, first = program.plan, program.built, int(ready.state.step)
    with contextlib.ExitStack() as opened:
        there = None if start.reset_optimizer else first
        saving = Checkpointing(
            directory, recipe.checkpoint, log=log, facts=resources.facts, reader=exporting, there=there
        )
        opened.callback(saving.finish)  # a save that is under way when training fails is still a good one
        compilations = Compilations(log)
        opened.callback(compilations.close)
        server, signal = resources.server, resources.signal
        orders = Commands(server=server, signal=signal, log=log, course=course, repeats=ready.repeats, before=before)
        meter = MetricsWriter(log, data=data.epochs, work=StepWork.of(plan, tflops=recipe.parallel.peak_tflops))
        profile = Profile(directory, start.profile, log=log, meter=meter)
        starts_again = False
        opened.callback(lambda: profile.close(log.step, starts_again=starts_again))
        sharding = mesh.batch_sharding(built.mesh)
        feed = Prefetch(
            data.batch, count=built.task.count, first=first, last=plan.steps, split=plan.batch, sharding=sharding
        )
        opened.callback(feed.close)

        def close_cache() -> None:
            if not starts_again:
                cache.close()

        opened.callback(close_cache)  # before the feed, which may be waiting for it
        job = Job(
            recipe=recipe,
            course=course,
            step=program,
            feed=feed,
            meter=meter,
            orders=orders,
            saving=saving,
            evaluate=_evaluator(recipe, cache, built, plan, orders=orders, log=log),
            sample=_sampler(recipe, directory, cache, built, log=log),
            statistics=ParameterHistograms(log),
            compilations=compilations,
            profile=profile,
            log=log,
            watch_helpers=resources.watch_helpers,
            owed=owed(directory, recipe, first, last=first >= course.total_steps),
        )
        meter.restart_clock()
        outcome = run_loop(ready.state, job)
        if starts_again := outcome.out_of_memory:
            return LoopEnd(False, True, outcome.step, orders)
        last, stopped = outcome.step, outcome.stopped
        done = last >= course.total_steps and not (stopped and owed(directory, recipe, last, last=True))
        if exporting:  # with the server open: who does not want to wait can say so
            done &= exporting.finish(interrupted=orders.until_told("waiting for exports", patience=SIDECAR_SECONDS))
    return LoopEnd(done, False, outcome.step, orders)


def _check(recipe: Recipe, start: Start, *, done: int) -> None:
    """Raises TrainkitError where it is known before there are any tokens that the run will not do."""
    for tracker in asked(recipe.track):
        if tracker != "aim":  # it comes with trainkit: where it is missing nonetheless, an alert says so
            require(tracker)
    recipe.task.check_documents(recipe.data.train)
    if recipe.task.masks and (codec := peek(recipe)) is not None:
        check_tokenizer(recipe.task, codec)
    if recipe.train.steps is not None:  # the run may have been ordered to end before: it is checked again then
        check_steps(start.profile, done=done, total=recipe.train.steps)


def _cached(recipe: Recipe, log: EventLog, *, resumed: bool) -> caches.Cache:
    """The tokens; what is missing is made, by the time this returns or, where training may begin before, later."""
    cache = caches.find(recipe)
    if cache is None:
        rehearse(recipe, resumed=resumed)
        make = caches.begin if caches.may_start_early(recipe) else caches.build
        cache = make(recipe, progress=partial(_tell_progress, log))
    return cache


def rehearse(recipe: Recipe, *, resumed: bool) -> None:
    """Raise what is wrong with devices, batch, optimiser, weights or ends of texts now, not after hours of tokenising.

    Of the data nothing is known yet, and nothing that is looked at here hangs on it.
    """
    if not resumed and recipe.data.is_text:  # a run that resumes has kept its own
        check_texts(recipe)
    guess = DataSize(examples=1, tokens=1, documents=1, bytes=1)
    built = build(recipe, make_plan(recipe, devices=devices.local(recipe.parallel.platform), vocab_size=1, data=guess))
    check_weights(recipe, built, resumed=resumed)


def _evaluator(
    recipe: Recipe, cache: caches.Cache, built: BuiltStep, plan: Plan, *, orders: Commands, log: EventLog
) -> Evaluator:
    # how large a batch is hangs on the recipe alone, so that `max_batches` means the same on every machine
    given = recipe.evaluate.batch_size
    at_once = given or plan.batch.micro * plan.batch.replicas
    sets = {
        name: EvalSet(
            stream,
            source,
            recipe.data,
            cache.directory,
            name=name,
            batch_size=given or recipe.train.batch_size,
            at_once=at_once,
            max_batches=recipe.evaluate.max_batches,
            seed=recipe.run.seed,
            shifted=recipe.task.shifted,
        )
        for (name, stream), source in zip(cache.validation.items(), validation_sources(recipe), strict=True)
    }
    return Evaluator(
        sets,
        batch_size=at_once,
        task=built.task,
        compute=built.compute,
        mesh=built.mesh,
        log=log,
        interrupted=lambda: orders.interrupted,
    )


def _sampler(recipe: Recipe, directory: Path, cache: caches.Cache, built: BuiltStep, *, log: EventLog) -> SampleReport:
    if recipe.model.kind != "causal":  # an order may ask for samples, though no recipe can
        told = f'model.type = "{recipe.model.type}" ({recipe.model.kind}) generates no text: nothing was sampled'
        return lambda state, step, prompts=None: log.write("alert", step=step, kind="sample", message=told)
    texts, spec = text_format_of(recipe, directory, cache.text_tokenizer), recipe.sample or upkeep.Sample()
    find = template_of if spec.has_conversations else usable_template
    sampler = Sampler(
        spec,
        codec=cache.text_tokenizer,
        begin=texts.begin,
        ends=texts.ends,
        context_length=recipe.language_model.context_length or recipe.data.positions,
        compute=built.compute,
        mesh=built.mesh,
        log=log,
        template=find(chat_of(recipe), (directory,)),
    )
    return lambda state, step, prompts=None: sampler(
        state.params, state.frozen, key=state.key, step=step, prompts=prompts
    )


def _facts(
    recipe: Recipe, data_fingerprint: str, base: str | None, sidecars: Sidecars, log: EventLog, last: bool
) -> Provenance:
    return Provenance(
        recipe=recipe.fingerprint(),
        data=data_fingerprint,
        attempt=log.attempt,
        base=base,
        aim_run=sidecars.aim_run(patience=AIM_HASH_SECONDS if last else 0.0),
    )


def _sidecars(directory: Path, recipe: Recipe, log: EventLog, afterwards: contextlib.ExitStack) -> Sidecars:
    """Started only now, so that they do not take the processor from compiling."""
    sidecars = Sidecars.start(directory, recipe.track)

    def finish() -> None:
        for name, problem in sidecars.finish(timeout=SIDECAR_SECONDS):
            log.write("alert", step=log.step, kind=name, message=problem)

    afterwards.callback(finish)
    return sidecars


def _watch(
    cache: caches.Cache, sidecars: Sidecars, findings: DataHealth, disk: DiskSpace, log: EventLog, step: int
) -> None:
    cache.check()
    findings.look()
    disk.look()
    for name, problem in sidecars.poll():
        log.write("alert", step=step, kind=name, message=problem)


def _tell_progress(log: EventLog, progress: caches.CachingProgress) -> None:
    log.write("cache_progress", step=log.step, **asdict(progress))
