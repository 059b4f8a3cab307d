"""The learning rate as a function of the step."""

from __future__ import annotations

from typing import Protocol, assert_never

import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike

from trainkit.recipe.sections.schedule import NEVER, Constant, Cosine, LinearDecay, Schedule, Wsd


class LearningRate(Protocol):
    def __call__(self, step: ArrayLike, decay_start: ArrayLike = NEVER, /) -> ArrayLike:
        """Of the update after `step` others; `decay_start` is where the decay was ordered to begin, if it was."""


def learning_rate(schedule: Schedule, *, peak: float, steps: int) -> LearningRate:
    """Step (updates done, from 0) to learning rate: a linear warm-up from 0, then the schedule's own shape.

    The first update has 1/warmup of the peak, not 0; the last one is as near to the end value as the shape allows.
    """
    warmup = schedule.warmup_steps(steps)
    rest = max(steps - warmup, 1)
    match schedule:
        case Cosine():
            after = optax.cosine_decay_schedule(peak, rest, alpha=schedule.min_ratio)
        case LinearDecay():
            after = optax.linear_schedule(peak, peak * schedule.min_ratio, rest)
        case Constant() | Wsd():
            after = optax.constant_schedule(peak)
        case _:
            assert_never(schedule)
    if warmup > 0:
        rising = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
        after = optax.join_schedules([rising, after], [warmup])
    if not isinstance(schedule, Wsd):
        return lambda step, decay_start=NEVER: after(step)
    return lambda step, decay_start=NEVER: after(step) * _share(schedule, steps, step, decay_start)


def _share(schedule: Wsd, steps: int, step: ArrayLike, decay_start: ArrayLike) -> Array:
    """What the decay leaves of the peak: 1 until it begins, `min_ratio` when it is over."""
    decay = schedule.decay_steps(steps)
    start = jnp.minimum(decay_start, steps - decay)
    done = jnp.clip((step - start) / max(decay, 1), 0.0, 1.0)
    match schedule.shape:
        case "1-sqrt":
            left = 1 - jnp.sqrt(done)
        case "linear":
            left = 1 - done
        case "cosine":
            left = (1 + jnp.cos(jnp.pi * done)) / 2
        case _:
            assert_never(schedule.shape)
    return schedule.min_ratio + (1 - schedule.min_ratio) * left
