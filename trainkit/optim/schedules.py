"""The learning rate as a function of the step."""

from __future__ import annotations

from typing import assert_never

import optax

from trainkit.recipe.schedule import Constant, Cosine, Linear, Schedule


def learning_rate(schedule: Schedule, *, peak: float, steps: int) -> optax.Schedule:
    """Step (updates done, from 0) to learning rate: a linear warm-up from 0, then the schedule's own shape.

    The first update has 1/warmup of the peak, not 0; the last one is as near to the end value as the shape allows.
    """
    warmup = schedule.warmup if isinstance(schedule.warmup, int) else round(schedule.warmup * steps)
    warmup = min(warmup, steps)
    rest = max(steps - warmup, 1)
    match schedule:
        case Cosine():
            after = optax.cosine_decay_schedule(peak, rest, alpha=schedule.min_ratio)
        case Linear():
            after = optax.linear_schedule(peak, peak * schedule.min_ratio, rest)
        case Constant():
            after = optax.constant_schedule(peak)
        case _:
            assert_never(schedule)
    if warmup == 0:
        return after
    rising = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rising, after], [warmup])
