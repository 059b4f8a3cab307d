"""The loop: step, log, evaluate, save, obey."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jax.errors import JaxRuntimeError
from jaxtyping import Array

from trainkit.recipe import Recipe
from trainkit.train.compilations import Compilations
from trainkit.train.course import Course
from trainkit.train.feed import Feed
from trainkit.train.meter import Meter
from trainkit.train.obey import Orders
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
    rescue: Callable[[State, Exception], tuple[State, Step]] = no_rescue
    """Called where the devices failed: from what state, and with what step, to go on."""
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
            batch, waited = job.feed.next()
            job.profile.before(step + 1)
            with job.compilations.during("training", step + 1):
                with job.meter.spent("dispatch"):
                    state, metrics = update(state, batch)
                step += 1
                job.meter.add(step, metrics, waited=waited, tokens=_positions(batch))
            job.profile.after(step)
            state, stop = _between_steps(state, step, job, scheduled=True)
            while job.orders.paused and not stop:
                state, stop = _between_steps(state, step, job, scheduled=False)
        except JaxRuntimeError as error:
            state, update = job.rescue(state, error)
            step = int(state.step)
            job.orders.repeat(step)
            state = job.course.put_into(state)
            job.meter.restart_clock()
        job.saving.report(step)
        job.watch_helpers(step)
    job.meter.flush()
    job.saving.finish()
    return state, step


def _positions(batch: Mapping[str, Array]) -> int:
    """Tokens that the step sees, padding included; examples where these have none."""
    return int((batch["tokens"] if "tokens" in batch else next(iter(batch.values()))[..., 0]).size)


def _between_steps(state: State, step: int, job: Job, *, scheduled: bool) -> tuple[State, bool]:
    """Obey; evaluate, sample and save, where it is ordered or, if `scheduled`, due.

    The state as orders have changed it, and whether the run is to end here.
    """
    wanted = job.orders.take(step, meanwhile=lambda: job.saving.report(step))
    state = job.course.put_into(state)
    last = step == job.course.total_steps
    sample = job.recipe.sample
    evaluating = wanted.evaluate or (scheduled and (last or _due(job.recipe.evaluate.every, step)))
    sampling = sample is not None and scheduled and (last or _due(sample.every, step))
    looking = scheduled and _due(job.recipe.statistics.every, step)
    stop = wanted.stop
    if evaluating or sampling or looking or wanted or last or job.saving.is_due(step):
        job.meter.flush()  # the log holds every step up to here before anything is said about its result
        during = job.compilations.during
        if evaluating and not stop:
            with during("evaluation", step), job.meter.spent("evaluation"):
                job.evaluate(state, step)
        if looking and not stop:
            with during("statistics", step):
                job.statistics(state, step)
        if sampling and not stop and not job.orders.interrupted:
            with during("sampling", step):
                job.sample(state, step)
        if wanted.prompts and not stop and not job.orders.interrupted:
            with during("sampling", step):
                job.sample(state, step, wanted.prompts)
        stop = stop or job.orders.interrupted
        started = time.perf_counter()
        if job.saving.save(state, step, last=last, requested=wanted.save, stopping=stop):
            job.meter.spend("checkpoint", since=started)
        job.meter.restart_clock()
    return state, stop


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
