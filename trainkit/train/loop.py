"""The loop: step, log, evaluate, save, obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Array

from trainkit.recipe import Recipe
from trainkit.train.feed import Feed
from trainkit.train.meter import Meter
from trainkit.train.obey import Order, Orders
from trainkit.train.saving import Saving
from trainkit.train.state import State
from trainkit.train.step import Step


class Look(Protocol):
    """Something that looks at the state and writes what it saw to the log: an evaluation, a sample."""

    def __call__(self, state: State, step: int, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the loop works with; `run/assemble.py` assembles it."""

    recipe: Recipe
    total_steps: int
    step: Step
    feed: Feed
    meter: Meter
    orders: Orders
    saving: Saving
    evaluate: Look
    sample: Look
    watch_helpers: Callable[[int], None]
    """Called after every step: what runs beside the trainer may have something to report."""


def train(state: State, job: Job) -> tuple[State, int]:
    """From the step that `state` is at to the last, or to where it is told to stop; the state and its step.

    What it returns has been saved.
    """
    step = int(state.step)
    stop = False
    while step < job.total_steps and not stop:
        batch, waited = job.feed.next()
        state, metrics = job.step(state, batch)
        step += 1
        job.meter.add(step, metrics, waited=waited, tokens=_positions(batch))
        stop = _between_steps(state, step, job, job.orders.take(step), scheduled=True)
        while job.orders.paused and not stop:
            stop = _between_steps(state, step, job, job.orders.take(step), scheduled=False)
        job.saving.report(step)
        job.watch_helpers(step)
    job.meter.flush()
    job.saving.finish()
    return state, step


def _positions(batch: Mapping[str, Array]) -> int:
    """Tokens that the step sees, padding included; examples where these have none."""
    return int((batch["tokens"] if "tokens" in batch else next(iter(batch.values()))[..., 0]).size)


def _between_steps(state: State, step: int, job: Job, orders: set[Order], *, scheduled: bool) -> bool:
    """Evaluate, sample and save, where it is ordered or, if `scheduled`, due; whether the run is to end here."""
    last = step == job.total_steps
    sample = job.recipe.sample
    evaluating = "evaluate" in orders or (scheduled and (last or _due(job.recipe.evaluate.every, step)))
    sampling = sample is not None and scheduled and (last or _due(sample.every, step))
    stop = "stop" in orders
    if evaluating or sampling or orders or last or job.saving.is_due(step):
        job.meter.flush()  # the log holds every step up to here before anything is said about its result
        if evaluating and not stop:
            job.evaluate(state, step)
        if sampling and not stop and not job.orders.interrupted:
            job.sample(state, step)
        stop = stop or job.orders.interrupted
        job.saving.save(state, step, last=last, requested="save" in orders, stopping=stop)
        job.meter.restart_clock()
    return stop


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
