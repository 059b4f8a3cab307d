"""The learning rate as a function of the step."""

from __future__ import annotations

from typing import Protocol

import jax.numpy as jnp
from jaxtyping import ArrayLike

from trainkit.recipe.sections.schedule import NEVER, ScheduleSpec


class LearningRate(Protocol):
    def __call__(self, step: ArrayLike, decay_start: ArrayLike = NEVER, /) -> ArrayLike:
        """Of the update after `step` others; `decay_start` is where the decay was ordered to begin, if it was."""


def learning_rate(schedule: ScheduleSpec, *, peak: float, steps: int) -> LearningRate:
    """Return the function from step (updates done, from 0) to learning rate, for a run of `steps`."""
    return lambda step, decay_start=NEVER: schedule.rate(step, peak=peak, steps=steps, decay_start=decay_start, xp=jnp)
