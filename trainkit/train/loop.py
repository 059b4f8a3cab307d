"""The loop: step, log, evaluate, save, obey."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jax.errors import JaxRuntimeError

from trainkit.events.log import EventLog
from trainkit.recipe import Recipe
from trainkit.train.compilations import Compilations
from trainkit.train.course import Course
from trainkit.train.feed import Feed
from trainkit.train.fit import skipped_without_memory
from trainkit.train.meter import Meter
from trainkit.train.obey import Orders, Wanted
from trainkit.train.profile import Profile
from trainkit.train.saving import Saving
from trainkit.train.state import State
from trainkit.train.step import Step


class Look(Protocol):
    def __call__(self, state: State, step: int, /) -> None:
        """Write to the log how well the model does, or how its parameters are distributed."""


class Sample(Protocol):
    def __call__(self, state: State, step: int, prompts: Sequence[str] | None = None, /) -> None:
        """Write to the log how the model continues these prompts, or those of the recipe."""


def no_rescue(state: State, error: Exception) -> tuple[State, Step]:
    """For loops that are to fail."""
    raise error


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the loop works with; `run/assemble.py` assembles it."""

    recipe: Recipe
    course: Course
    step: Step
    feed: Feed
    meter: Meter
    orders: Orders
    saving: Saving
    evaluate: Look
    sample: Sample
    statistics: Look
    compilations: Compilations
    profile: Profile
    log: EventLog
    rescue: Callable[[State, Exception], tuple[State, Step]] = no_rescue
    """Called where the devices failed in a step: from what state, and with what step, to go on."""
    watch_helpers: Callable[[int], None]
    """Called after every step: what runs beside the trainer may have something to report."""


def train(state: State, job: Job) -> tuple[State, int]:
    """From the step that `state` is at to the last, or to where it is told to stop; the state and its step.

    What it returns has been saved.
    """
    step = int(state.step)
    update, stop = job.step, False
    job.orders.repeat(step)
    state = job.course.put_into(state)
    while step < job.course.total_steps and not stop:
        try:
            batch, tokens, waited = job.feed.next()
            job.profile.before(step + 1)
            with job.compilations.during("training", step + 1):
                with job.meter.spent("dispatch"):
                    state, metrics = update(state, batch)
                step += 1
                job.meter.add(step, metrics, waited=waited, tokens=tokens)
            job.profile.after(step)
            due = _due_after(step, job, scheduled=True)
        except JaxRuntimeError as error:
            state, update = job.rescue(state, error)
            step = int(state.step)
            job.orders.repeat(step)
            state = job.course.put_into(state)
            job.meter.restart_clock()
        else:
            state, stop = _between_steps(state, step, job, due)
            while job.orders.paused and not stop:
                state, stop = _between_steps(state, step, job, _due_after(step, job, scheduled=False))
        job.saving.report(step)
        job.watch_helpers(step)
    job.meter.flush()
    job.saving.finish()
    return state, step


class _Due(NamedTuple):
    """What is to be done after a step."""

    wanted: Wanted
    last: bool
    evaluating: bool
    looking: bool
    sampling: bool
    saving: bool


def _due_after(step: int, job: Job, *, scheduled: bool) -> _Due:
    """What is ordered or, if `scheduled`, due. Where there is anything, the device has done all steps up to here."""
    wanted = job.orders.take(step, meanwhile=lambda: job.saving.report(step))
    last = step == job.course.total_steps
    recipe, sample = job.recipe, job.recipe.sample
    due = _Due(
        wanted,
        last,
        evaluating=wanted.evaluate or (scheduled and (last or _falls_on(step, recipe.evaluate.every))),
        looking=scheduled and _falls_on(step, recipe.statistics.every),
        sampling=sample is not None and scheduled and (last or _falls_on(step, sample.every)),
        saving=last or job.saving.is_due(step),
    )
    if any(due):
        try:
            job.meter.flush()  # the log holds every step up to here before anything is said about its result
        except JaxRuntimeError:
            job.orders.put_back(wanted)
            raise
    return due


def _between_steps(state: State, step: int, job: Job, due: _Due) -> tuple[State, bool]:
    """Evaluate, sample and save; the state as orders have changed it, and whether the run is to end here."""
    state = job.course.put_into(state)
    if not any(due):
        return state, False
    wanted, stop, during = due.wanted, due.wanted.stop, job.compilations.during
    if due.evaluating and not stop:
        with during("evaluation", step), job.meter.spent("evaluation"):
            job.evaluate(state, step)
    if due.looking and not stop:
        with skipped_without_memory("statistics", step=step, log=job.log), during("statistics", step):
            job.statistics(state, step)
    asked: list[Sequence[str] | None] = [None] if due.sampling else []
    if wanted.prompts:
        asked.append(wanted.prompts)
    for prompts in asked:
        if not stop and not job.orders.interrupted:
            with skipped_without_memory("samples", step=step, log=job.log), during("sampling", step):
                job.sample(state, step, prompts)
    stop = stop or job.orders.interrupted
    started = time.perf_counter()
    if job.saving.save(state, step, last=due.last, requested=wanted.save, stopping=stop):
        job.meter.spend("checkpoint", since=started)
    job.meter.restart_clock()
    return state, stop


def _falls_on(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
