"""What the loop works with, assembled around one state and one compiled step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from trainkit.checkpoint.provenance import Provenance
from trainkit.data.batches.dataset import TrainSet
from trainkit.data.batches.evaluation_set import evaluation_sets
from trainkit.data.cache.token_cache import Cache
from trainkit.evaluation.evaluator import Evaluator
from trainkit.evaluation.results import result_writer
from trainkit.evaluation.targets import text_report, unused_settings
from trainkit.events.log import EventLog
from trainkit.events.tail import number
from trainkit.export.background import Exporting
from trainkit.infer.sampler import build_sampler
from trainkit.parallel import hosts, mesh
from trainkit.plan import Plan
from trainkit.recipe import Recipe
from trainkit.recipe.families.model import WRITING
from trainkit.run.black_box import BlackBoxes
from trainkit.run.health import TRACKER_SECONDS, Health
from trainkit.run.prepare import Ready
from trainkit.run.start import Start
from trainkit.rundir.directory import BLACK_BOXES
from trainkit.rundir.owed import find_owed
from trainkit.track.sidecar import Sidecars
from trainkit.train.best import best_so_far
from trainkit.train.build import BuiltStep
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.compilations import Compilations, InterruptibleJit
from trainkit.train.control import Commands
from trainkit.train.finish import FinishInTime, finish_in_time
from trainkit.train.loop import EvaluationReport, Job, Outcome, SampleReport, train
from trainkit.train.metrics import MetricsWriter, StepWork, log_distributions
from trainkit.train.prefetch import Prefetch
from trainkit.train.profile import Profile
from trainkit.train.reference import log_info
from trainkit.train.shared import SharedServer, SharedSignals
from trainkit.train.state import State, with_averages
from trainkit.train.verdicts import Verdicts
from trainkit.train.watchdog import Watchdog, report_stall

#: Seconds that the last checkpoint of a short run waits for Aim to name its run.
AIM_HASH_SECONDS = 20.0


class Attempt(NamedTuple):
    """What lasts for a whole attempt, even if it restarts because memory ran out."""

    directory: Path
    recipe: Recipe
    cache: Cache
    data: TrainSet
    provenance: Callable[[bool], Provenance]
    exporting: Exporting | None
    server: SharedServer
    signal: SharedSignals
    health: Health
    left_out: tuple[int, ...]
    """The steps that rollbacks left out."""
    rollbacks: int
    log: EventLog


class LoopEnd(NamedTuple):
    """How the loop ended."""

    done: bool
    """Whether nothing of the run is left to do."""
    outcome: Outcome
    """Without the state."""
    commands: Commands
    reason: str = ""
    """Why the run was done before its last step."""


def run_loop(ready: Ready, start: Start, attempt: Attempt, *, before: Commands | None = None) -> LoopEnd:
    """Run the loop from the state in `ready`. `before` took the commands of the loop before it, if there was one."""
    outcome: Outcome | None = None
    with contextlib.ExitStack() as opened:

        def starts_again() -> bool:
            return outcome is not None and outcome.starts_again

        job = _assemble(ready, start, attempt, before=before, opened=opened, starts_again=starts_again)
        job.metrics.restart_clock()
        outcome = train(ready.state, job)._replace(state=None)
        if outcome.starts_again:
            return LoopEnd(False, outcome, job.commands)
        last = outcome.step
        reason = "" if last >= job.schedule.total_steps else job.best.reason
        done = last >= job.schedule.total_steps or bool(reason)
        done = done and not (outcome.stopped and find_owed(attempt.directory, attempt.recipe, last, last=True))
        if attempt.exporting:  # the control server is still open, so that a person can cancel the wait
            done &= attempt.exporting.finish(
                interrupted=job.commands.until_stopped("waiting for exports", patience=TRACKER_SECONDS)
            )
    return LoopEnd(done, outcome, job.commands, reason)


def _assemble(
    ready: Ready,
    start: Start,
    attempt: Attempt,
    *,
    before: Commands | None,
    opened: contextlib.ExitStack,
    starts_again: Callable[[], bool],
) -> Job:
    """Return what the loop works with. What must be closed after it is pushed onto `opened`.

    Args:
        starts_again: whether another loop of this attempt follows, which will need the cache.
    """
    directory, recipe, log, schedule = attempt.directory, attempt.recipe, attempt.log, ready.schedule
    program, first = ready.program, int(ready.state.step)
    plan, built = program.plan, program.built
    finish = hosts.from_first(lambda: finish_in_time(recipe, directory))
    checkpointing = _checkpointing(attempt, finish, restored=None if start.reset_optimizer else first)
    opened.callback(checkpointing.close)  # if training fails, a save that has started is still good
    best = hosts.from_first(lambda: best_so_far(directory, recipe))
    checkpointing.keep_best(best.mark)
    compilations = Compilations(log)
    opened.callback(compilations.close)
    commands = Commands(
        server=attempt.server,
        signal=attempt.signal,
        log=log,
        schedule=schedule,
        repeats=ready.repeats,
        before=before,
        finish=finish,
    )
    watchdog = _watchdog(attempt)
    opened.callback(watchdog.close)
    metrics = _metrics(attempt, plan)
    profile = Profile(directory, start.profile, log=log, metrics=metrics)
    opened.callback(lambda: profile.close(log.step, starts_again=starts_again()))
    prefetch = _prefetch(attempt, ready, first=first)
    opened.callback(prefetch.close)
    # before the prefetch, which may be waiting for the cache
    opened.callback(lambda: None if starts_again() else attempt.cache.close())
    return Job(
        recipe=recipe,
        schedule=schedule,
        step=program,
        measuring_step=program.measuring_step,
        prefetch=prefetch,
        metrics=metrics,
        commands=commands,
        checkpointing=checkpointing,
        best=best,
        evaluate=_evaluation(attempt, built, plan, commands=commands),
        sample=_sampler(attempt, built, commands=commands),
        statistics=partial(log_distributions, log),
        compilations=compilations,
        profile=profile,
        log=log,
        check_health=attempt.health.check,
        watchdog=watchdog,
        left_out=frozenset(attempt.left_out),
        owed=hosts.from_first(
            lambda: find_owed(directory, recipe, first, last=first >= schedule.total_steps or best.exhausted)
        ),
    )


def _checkpointing(attempt: Attempt, finish: FinishInTime | None, *, restored: int | None) -> Checkpointing:
    """Return what saves. `restored` is the step whose checkpoint the state was restored from, if it is as it was."""
    return Checkpointing(
        attempt.directory,
        attempt.recipe.checkpoint,
        log=attempt.log,
        provenance=lambda last: replace(attempt.provenance(last), left_out=attempt.left_out),
        reader=attempt.exporting,
        restored=restored,
        on_saved=finish.note_save if finish else lambda seconds: None,
        goes_back=attempt.recipe.guard.goes_back,
    )


def _watchdog(attempt: Attempt) -> Watchdog:
    guard = attempt.recipe.guard
    report = partial(report_stall, attempt.directory / BLACK_BOXES, attempt.log, stops=guard.stalled == "stop")
    return Watchdog(None if guard.stalled_minutes is None else 60 * guard.stalled_minutes, report)


def _metrics(attempt: Attempt, plan: Plan) -> MetricsWriter:
    """Return what writes and judges the metrics of each step."""
    recipe, data, log = attempt.recipe, attempt.data, attempt.log
    boxes = BlackBoxes(attempt.directory, recipe, attempt.cache, data, log, left_out=attempt.left_out)
    verdicts = Verdicts(recipe.guard, log=log, report=boxes.write, rollbacks=attempt.rollbacks)
    return MetricsWriter(
        log,
        data=data.epochs,
        work=StepWork.of(plan, tflops=recipe.parallel.peak_tflops),
        scheduled=data.schedule_values,
        check=verdicts.check,
    )


def _prefetch(attempt: Attempt, ready: Ready, *, first: int) -> Prefetch:
    """Return the batches of the steps from `first` on."""
    plan, built = ready.program.plan, ready.program.built
    return Prefetch(
        attempt.data.cut_batch,
        count=built.task.count,
        first=first,
        last=plan.steps,
        split=plan.batch,
        sharding=mesh.batch_sharding(built.mesh),
        size_at=attempt.recipe.batch_sizes.at,
    )


def _evaluation(attempt: Attempt, built: BuiltStep, plan: Plan, *, commands: Commands) -> EvaluationReport:
    evaluator = _evaluator(attempt, built, plan, commands=commands)
    return lambda state, step, only=None: evaluator(_state_in_use(attempt.recipe, state), step, only)


def _evaluator(attempt: Attempt, built: BuiltStep, plan: Plan, *, commands: Commands) -> Evaluator:
    recipe, log = attempt.recipe, attempt.log
    at_once = recipe.evaluate.batch_size or plan.batch.micro * plan.batch.replicas
    if recipe.evaluate.generate and (unused := unused_settings(recipe.evaluate.generate, attempt.directory)):
        log_info(log, unused)
    return Evaluator(
        evaluation_sets(attempt.cache.directory, attempt.cache.validation, recipe, at_once=at_once),
        batch_size=at_once,
        task=built.task,
        compares=recipe.task.least_rows > 1,
        metrics=built.metrics,
        tags=recipe.evaluate.tags,
        compute=built.compute,
        mesh=built.mesh,
        log=attempt.log,
        interrupted=lambda: commands.interrupted,
        results=result_writer(attempt.directory, recipe, attempt.cache, average=recipe.evaluates_average)
        if recipe.evaluate.predictions
        else None,
        texts=text_report(
            recipe,
            attempt.directory,
            attempt.cache.tokenizer,
            compute=built.compute,
            mesh=built.mesh,
            interrupted=lambda: commands.interrupted,
            alert=lambda message: log.write("alert", step=log.step, kind="out of memory", message=message),
            jit=_jit(commands),
        ),
        jit=_jit(commands),
    )


def _jit(commands: Commands) -> Callable[..., Any]:
    """Return what compiles evaluations and samples. Several processes wait for a compilation in any case."""
    return jax.jit if hosts.count() > 1 else partial(InterruptibleJit, interrupted=lambda: commands.interrupted)


def _sampler(attempt: Attempt, built: BuiltStep, *, commands: Commands) -> SampleReport:
    recipe, log = attempt.recipe, attempt.log
    if recipe.model.kind not in WRITING:  # a command may ask for samples, although a recipe cannot
        message = f'model.type = "{recipe.model.type}" ({recipe.model.kind}) generates no text: nothing was sampled'
        return lambda state, step, prompts=None: log.write("alert", step=step, kind="sample", message=message)
    codec = attempt.cache.text_tokenizer
    sampler = build_sampler(
        recipe, attempt.directory, codec, compute=built.compute, mesh=built.mesh, log=log, jit=_jit(commands)
    )

    def sample(state: State, step: int, prompts: Sequence[str] | None = None) -> None:
        used = _state_in_use(recipe, state)
        sampler(used.params, used.frozen, key=used.key, step=step, prompts=prompts)

    return sample


def _state_in_use(recipe: Recipe, state: State) -> State:
    """Return the state to evaluate and to sample from, whose parameters are the averages if the recipe uses these."""
    return with_averages(state) if recipe.evaluates_average else state


def provenance_of(facts: Provenance, trackers: Sidecars, log: EventLog, last: bool) -> Provenance:
    """Return what a checkpoint's manifest records besides the state; `last` of the run's last checkpoint."""
    aim_run = trackers.aim_run(patience=AIM_HASH_SECONDS if last else 0.0)
    step, metrics = log.newest
    known = {name: number(value) for name, value in metrics.items() if name.startswith("train/") and step == log.step}
    return replace(facts, aim_run=aim_run, log=log.mark(), metrics=known)
