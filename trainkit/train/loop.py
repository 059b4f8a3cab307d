"""The loop: step, log, evaluate, save, handle commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import jax
from jax.errors import JaxRuntimeError

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.parallel import agreement, hosts
from trainkit.recipe import Recipe
from trainkit.rundir.directory import RunMoved
from trainkit.rundir.owed import NOTHING, Owed, falls_on
from trainkit.train.best import BestSoFar
from trainkit.train.checkpointing import Checkpointing, CheckpointNotWritten
from trainkit.train.compilations import Compilations
from trainkit.train.control import Commands, LiveSchedule, RequestedActions
from trainkit.train.metrics import Broken, MetricsWriter
from trainkit.train.out_of_memory import as_one_of_several, can_recover_from, is_alive, skip_without_memory
from trainkit.train.prefetch import DeviceBatch, Prefetch
from trainkit.train.profile import Profile
from trainkit.train.state import State, without_update
from trainkit.train.step import WITHOUT_UPDATE, Metrics, Step
from trainkit.train.verdicts import MustRollBack, Rollback
from trainkit.train.watchdog import Watchdog


class EvaluationReport(Protocol):
    """Evaluates a state and logs the metrics."""

    def __call__(
        self, state: State, step: int, /, only: Collection[str] | None = None
    ) -> Mapping[str, Mapping[str, float]]:
        """Write the metrics on all validation sets, or on some, to the log, and return those of each."""


class StateReport(Protocol):
    """Logs statistics of a state."""

    def __call__(self, state: State, step: int, /) -> None:
        """Write the distributions of the parameters to the log."""


class SampleReport(Protocol):
    """Lets the model continue prompts and logs the texts."""

    def __call__(self, state: State, step: int, prompts: Sequence[str] | None = None, /) -> None:
        """Write the model's continuations of these prompts, or of those of the recipe, to the log."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the loop works with; `run/job.py` assembles it."""

    recipe: Recipe
    schedule: LiveSchedule
    step: Step
    measuring_step: Step | None = None
    """The same step with the statistics of the recipe, for the steps that ask for them."""
    prefetch: Prefetch
    metrics: MetricsWriter
    commands: Commands
    checkpointing: Checkpointing
    best: BestSoFar
    evaluate: EvaluationReport
    sample: SampleReport
    statistics: StateReport
    compilations: Compilations
    profile: Profile
    log: EventLog
    check_health: Callable[[int], None]
    """Called after every step, to report on what runs beside the trainer."""
    watchdog: Watchdog
    left_out: Collection[int] = frozenset()
    """The steps that a rollback left out."""
    owed: Owed = NOTHING
    """What an earlier attempt left undone after the first step of this one."""


class Outcome(NamedTuple):
    """How the loop ended."""

    state: State | None
    """None after running out of memory, because the restart needs its memory."""
    step: int
    """The last dispatched step."""
    stopped: bool
    """Whether a command or a signal ended the loop."""
    out_of_memory: bool = False
    """Whether a step ran out of memory, so that the run must restart with less work at once."""
    measuring: bool = False
    """Whether that may have been a step with statistics."""
    rollback: Rollback | None = None
    """Why and how the run must go back to an earlier checkpoint, if it must."""

    @property
    def starts_again(self) -> bool:
        """Return whether the attempt must continue from a checkpoint, in this process."""
        return self.out_of_memory or self.rollback is not None


def train(state: State, job: Job) -> Outcome:
    """Train from the step of `state` to the last one, until a command or signal stops the run, or memory runs out.

    The returned state is saved. So is a state that survives an error, which is raised again, or a lack of memory.

    Raises:
        CheckpointNotWritten: every try to write the last checkpoint failed.
        RunMoved: the run's directory is gone.
    """
    first = step = int(state.step)
    try:
        job.commands.repeat(step)
        state = job.schedule.put_into(state)
        state, stop = _between_steps(state, step, job, _Due(RequestedActions(), owed=job.owed))
        while step < job.schedule.total_steps and not stop and not job.best.exhausted:
            try:
                batch, size, waited = job.prefetch.next()
                if batch is not None:
                    job.profile.before(step + 1)
                    with job.compilations.record("training", step + 1):
                        with job.metrics.measure("dispatch"):
                            state, metrics = _advance(state, batch, step + 1, job)
                        step += 1
                        job.metrics.add(step, metrics, waited=waited, size=size)
                    job.watchdog.note_step()
                    job.profile.after(step)
                else:
                    job.metrics.spend("data_wait", since=time.perf_counter() - waited)
                    job.metrics.flush()  # the devices are idle, so this does not delay them
                due = _due_after(step, job, scheduled=batch is not None)
            except JaxRuntimeError as error:
                if not can_recover_from(error):
                    raise
                if step > first and is_alive(state):
                    job.metrics.flush()
                    _rescue(state, step, job)
                # an error of one step may be raised only when its metrics are read, which is during the next
                measuring = any(_step_for(number, job) is not job.step for number in range(max(1, step - 1), step + 2))
                return Outcome(None, step, stopped=False, out_of_memory=True, measuring=measuring)
            state, stop = _between_steps(state, step, job, due)
            while job.commands.paused and not stop:
                state, stop = _between_steps(state, step, job, _due_after(step, job, scheduled=False))
            job.checkpointing.report(step)
            job.check_health(step)
        job.metrics.flush()
        last = step == job.schedule.total_steps or job.best.exhausted
        if step > first or stop or job.best.exhausted:
            job.checkpointing.save_and_wait(state, step, last=last)
    except MustRollBack as error:
        return Outcome(None, step, stopped=False, rollback=error.rollback)
    except (Broken, CheckpointNotWritten, RunMoved):
        raise
    except (Exception, hosts.FirstFailed) as error:
        if hosts.count() > 1 and isinstance(error, JaxRuntimeError):
            hosts.depart()
            failed: BaseException = as_one_of_several(error)
        else:
            failed = agreement.share(error)
            if step > first:
                _rescue(state, step, job)
        if failed is error:
            raise
        raise failed from error
    return Outcome(state, step, stop)


def _advance(state: State, batch: DeviceBatch, number: int, job: Job) -> tuple[State, Metrics]:
    """Return the state after step `number`, and its metrics."""
    if number in job.left_out:
        return without_update(state, number), dict(WITHOUT_UPDATE)
    return _step_for(number, job)(state, batch)


def _step_for(number: int, job: Job) -> Step:
    """Return the step with statistics if there is one and they are due at step `number`; otherwise the step."""
    if job.measuring_step is None or not falls_on(number, job.recipe.statistics.every):
        return job.step
    return job.measuring_step


def _rescue(state: State, step: int, job: Job) -> None:
    """Save a state that survived an error in all processes, so that no steps are lost."""
    failed = any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))
    try:
        if set(agreement.gather("rescue", None if failed else step)) != {step}:
            return  # the step itself failed
        job.metrics.flush()
        job.checkpointing.save_and_wait(state, step, last=False)
    except (TrainkitError, OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            message = f"the state of step {step} could not be saved: {error}"
            job.log.write("alert", step=step, kind="checkpoint", message=message)


class _Due(NamedTuple):
    """What to do after a step."""

    wanted: RequestedActions
    last: bool = False
    evaluating: bool = False
    computing_statistics: bool = False
    sampling: bool = False
    saving: bool = False
    owed: Owed = NOTHING


def _due_after(step: int, job: Job, *, scheduled: bool) -> _Due:
    """Return what commands and, if `scheduled`, the recipe ask for after this step.

    If there is anything, the device has completed all steps up to this one when this returns.
    """
    wanted = job.commands.take(step, meanwhile=lambda: job.checkpointing.report(step), aside=partial(_aside, job))
    last = step == job.schedule.total_steps
    recipe, sample = job.recipe, job.recipe.sample
    due = _Due(
        wanted,
        last,
        evaluating=wanted.evaluate or (scheduled and (last or falls_on(step, recipe.evaluate.every))),
        computing_statistics=scheduled and falls_on(step, recipe.statistics.histograms_every),
        sampling=sample is not None and scheduled and (last or falls_on(step, sample.every)),
        saving=(scheduled and last) or job.checkpointing.is_due(step),
    )
    if any(due):
        try:
            job.metrics.flush()  # the log must hold every step so far before it holds a result of this one
        except (JaxRuntimeError, MustRollBack):
            job.commands.put_back(wanted)
            raise
    return due


def _between_steps(state: State, step: int, job: Job, due: _Due) -> tuple[State, bool]:
    """Save, evaluate and sample; return the state with the changes of commands, and whether the run ends here.

    The state is saved first, so that nothing after it can lose it. The next attempt does what is cut off here.
    """
    state = job.schedule.put_into(state)
    if not any(due):
        return state, False
    with job.watchdog.aside():
        return _do_due(state, step, job, due)


@contextlib.contextmanager
def _aside(job: Job) -> Iterator[None]:
    with job.watchdog.aside(), job.metrics.aside():
        yield


def _do_due(state: State, step: int, job: Job, due: _Due) -> tuple[State, bool]:
    wanted, owed, stop, record = due.wanted, due.owed, due.wanted.stop, job.compilations.record
    started = time.perf_counter()
    if due.last and not stop:  # there is nothing to train meanwhile
        job.checkpointing.save_and_wait(state, step, last=True)
        job.metrics.spend("checkpoint", since=started)
    elif job.checkpointing.save(state, step, requested=wanted.save):
        job.metrics.spend("checkpoint", since=started)
    if (due.evaluating or owed.sets) and not stop:
        evaluated: Mapping[str, Mapping[str, float]] = {}
        with record("evaluation", step), job.metrics.measure("evaluation"):
            evaluated = job.evaluate(state, step, only=None if due.evaluating else owed.sets)
        if (mark := job.best.take(step, evaluated)) is not None:
            job.checkpointing.save_best(state, mark)
    ends = job.best.exhausted and job.recipe.sample is not None
    if (due.computing_statistics or owed.statistics) and not stop and not job.commands.interrupted:
        with skip_without_memory("statistics", step=step, log=job.log), record("statistics", step):
            job.statistics(state, step)
    prompt_lists: list[Sequence[str] | None] = [None] if due.sampling or owed.samples or ends else []
    if prompts_of_commands := [*owed.prompts, *wanted.prompts]:
        prompt_lists.append(prompts_of_commands)
    for prompts in prompt_lists:
        if not stop and not job.commands.interrupted:
            with skip_without_memory("samples", step=step, log=job.log), record("sampling", step):
                job.sample(state, step, prompts)
    stop |= job.commands.interrupted
    job.metrics.restart_clock()
    return state, stop
