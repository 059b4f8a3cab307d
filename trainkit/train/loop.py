"""The loop: step, log, evaluate, save, obey."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
from jax.errors import JaxRuntimeError

from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.recipe import Recipe
from trainkit.train.checkpointing import Checkpointing
from trainkit.train.compilations import Compilations
from trainkit.train.control import Commands, RequestedActions
from trainkit.train.guard import NotFinite
from trainkit.train.live_schedule import LiveSchedule
from trainkit.train.memory import is_alive, is_out_of_memory, skip_without_memory
from trainkit.train.metrics import MetricsWriter
from trainkit.train.owed import NOTHING, Owed, falls_on
from trainkit.train.prefetch import Prefetch
from trainkit.train.profile import Profile
from trainkit.train.state import State
from trainkit.train.step import Step


class EvaluationReport(Protocol):
    def __call__(self, state: State, step: int, /, only: Collection[str] | None = None) -> None:
        """Write to the log how well the model does on all validation sets, or on some."""


class StateReport(Protocol):
    def __call__(self, state: State, step: int, /) -> None:
        """Write to the log how the parameters are distributed."""


class SampleReport(Protocol):
    def __call__(self, state: State, step: int, prompts: Sequence[str] | None = None, /) -> None:
        """Write to the log how the model continues these prompts, or those of the recipe."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the loop works with; `run/setup.py` assembles it."""

    recipe: Recipe
    course: LiveSchedule
    step: Step
    feed: Prefetch
    meter: MetricsWriter
    orders: Commands
    saving: Checkpointing
    evaluate: EvaluationReport
    sample: SampleReport
    statistics: StateReport
    compilations: Compilations
    profile: Profile
    log: EventLog
    watch_helpers: Callable[[int], None]
    """Called after every step: what runs beside the trainer may have something to report."""
    owed: Owed = NOTHING
    """What an earlier attempt has left undone after the step that this one begins with."""


class Outcome(NamedTuple):
    """How the loop ended."""

    state: State | None
    """None where memory ran out: the restart needs the room that it would take."""
    step: int
    """The last step that was dispatched."""
    stopped: bool
    """Whether it was told to stop."""
    out_of_memory: bool = False
    """Whether a step found no memory: the run has to restart with less to do at once."""


def train(state: State, job: Job) -> Outcome:
    """Train from the step that `state` is at to the last, to where it is told to stop, or until memory runs out.

    The state that it returns has been saved. So is what an error or a lack of memory leaves whole; an error is raised.
    """
    first = step = int(state.step)
    try:
        job.orders.repeat(step)
        state = job.course.put_into(state)
        state, stop = _between_steps(state, step, job, _Due(RequestedActions(), owed=job.owed))
        while step < job.course.total_steps and not stop:
            try:
                batch, size, waited = job.feed.next()
                if batch is not None:
                    job.profile.before(step + 1)
                    with job.compilations.during("training", step + 1):
                        with job.meter.spent("dispatch"):
                            state, metrics = job.step(state, batch)
                        step += 1
                        job.meter.add(step, metrics, waited=waited, size=size)
                    job.profile.after(step)
                else:
                    job.meter.spend("data_wait", since=time.perf_counter() - waited)
                    job.meter.flush()  # the devices have nothing to do: the log need not be a step behind
                due = _due_after(step, job, scheduled=batch is not None)
            except JaxRuntimeError as error:
                if not is_out_of_memory(error) or jax.process_count() > 1:
                    raise
                if step > first and is_alive(state):
                    job.meter.flush()
                    _save_what_is_left(state, step, job)
                return Outcome(None, step, stopped=False, out_of_memory=True)
            state, stop = _between_steps(state, step, job, due)
            while job.orders.paused and not stop:
                state, stop = _between_steps(state, step, job, _due_after(step, job, scheduled=False))
            job.saving.report(step)
            job.watch_helpers(step)
        job.meter.flush()
    except NotFinite:
        raise
    except Exception:
        if step > first:
            _save_what_is_left(state, step, job)
        raise
    job.saving.finish()
    return Outcome(state, step, stop)


def _save_what_is_left(state: State, step: int, job: Job) -> None:
    """Save a state that did not fail itself: what has been trained need not be lost."""
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)):
        return  # the step itself has failed
    try:
        job.meter.flush()
        job.saving.save(state, step, last=False, requested=False, stopping=True)
        job.saving.finish()
    except (TrainkitError, OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            message = f"what was trained up to step {step} could not be saved: {error}"
            job.log.write("alert", step=step, kind="checkpoint", message=message)


class _Due(NamedTuple):
    """What is to be done after a step."""

    wanted: RequestedActions
    last: bool = False
    evaluating: bool = False
    looking: bool = False
    sampling: bool = False
    saving: bool = False
    owed: Owed = NOTHING


def _due_after(step: int, job: Job, *, scheduled: bool) -> _Due:
    """What is ordered or, if `scheduled`, due. Where there is anything, the device has done all steps up to here."""
    wanted = job.orders.take(step, meanwhile=lambda: job.saving.report(step), aside=job.meter.aside)
    last = step == job.course.total_steps
    recipe, sample = job.recipe, job.recipe.sample
    due = _Due(
        wanted,
        last,
        evaluating=wanted.evaluate or (scheduled and (last or falls_on(step, recipe.evaluate.every))),
        looking=scheduled and falls_on(step, recipe.statistics.every),
        sampling=sample is not None and scheduled and (last or falls_on(step, sample.every)),
        saving=(scheduled and last) or job.saving.is_due(step),
    )
    if any(due):
        try:
            job.meter.flush()  # the log holds every step up to here before anything is said about its result
        except JaxRuntimeError:
            job.orders.put_back(wanted)
            raise
    return due


def _between_steps(state: State, step: int, job: Job, due: _Due) -> tuple[State, bool]:
    """Save, evaluate and sample; the state as orders have changed it, and whether the run is to end here.

    It is saved first, so that nothing that comes after can lose it. What is then cut off, the next attempt finds owed.
    """
    state = job.course.put_into(state)
    if not any(due):
        return state, False
    wanted, owed, stop, during = due.wanted, due.owed, due.wanted.stop, job.compilations.during
    started = time.perf_counter()
    if job.saving.save(state, step, last=due.last, requested=wanted.save, stopping=stop):
        if due.last:
            job.saving.settle()  # there is nothing left to train meanwhile
        job.meter.spend("checkpoint", since=started)
    if (due.evaluating or owed.sets) and not stop:
        with during("evaluation", step), job.meter.spent("evaluation"):
            job.evaluate(state, step, only=None if due.evaluating else owed.sets)
    if (due.looking or owed.statistics) and not stop and not job.orders.interrupted:
        with skip_without_memory("statistics", step=step, log=job.log), during("statistics", step):
            job.statistics(state, step)
    asked: list[Sequence[str] | None] = [None] if due.sampling or owed.samples else []
    if prompts_of_people := [*owed.prompts, *wanted.prompts]:
        asked.append(prompts_of_people)
    for prompts in asked:
        if not stop and not job.orders.interrupted:
            with skip_without_memory("samples", step=step, log=job.log), during("sampling", step):
                job.sample(state, step, prompts)
    if not stop and job.orders.interrupted:
        stop = True
        job.saving.save(state, step, last=due.last, requested=False, stopping=True)
    job.meter.restart_clock()
    return state, stop
