"""The learning rate, and other values of a rule that change over the run: [schedule] and [schedules]."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, PyTree

from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.schedule_spec import NEVER, ScheduleSpec

Build = Callable[[OptimizerSpec], optax.GradientTransformation]


class LearningRate(Protocol):
    """The learning rate as a function of the step."""

    def __call__(
        self, step: ArrayLike, decay_start: ArrayLike = NEVER, decay_end: ArrayLike | None = None, /
    ) -> ArrayLike:
        """Return the rate of the update after `step` others; the decay is where it was ordered to be."""


def learning_rate(schedule: ScheduleSpec, *, peak: float, steps: int) -> LearningRate:
    """Return the learning rate as a function of the step (updates done, from 0), for a run of `steps`."""

    def rate(step: ArrayLike, decay_start: ArrayLike = NEVER, decay_end: ArrayLike | None = None, /) -> ArrayLike:
        found: ArrayLike = schedule.rate(
            step, peak=peak, steps=steps, decay_start=decay_start, decay_end=decay_end, xp=jnp
        )
        return found

    return rate


class ScheduledValue(NamedTuple):
    """A value of an optimizer that a schedule scales."""

    share: LearningRate
    """What the value is multiplied by at each step."""
    values: Mapping[str, float]
    """The value in each rule that has it, by the name of its metric."""


def with_schedules(rule: OptimizerSpec, build: Build, names: Collection[str]) -> optax.GradientTransformationExtraArgs:
    """Return what `build` makes of a rule, with the values of these names in `[schedules]` scaled at each step.

    The extra argument `shares` of an update says by how much. The transformation is made again in each trace, with
    traced values, so that one compiled program has all of them; its state is that of the rule.
    """
    first = optax.with_extra_args_support(build(rule))
    if not any(rule.schedulable.get(name) for name in names):
        return first

    def update(
        grads: PyTree, state: Any, params: PyTree | None = None, *, shares: Mapping[str, Array], **extras: Any
    ) -> tuple[PyTree, Any]:
        scaled = optax.with_extra_args_support(build(rule.scale_values(shares)))
        return scaled.update(grads, state, params, shares=shares, **extras)

    return optax.GradientTransformationExtraArgs(first.init, update)


def is_zero(value: float | Array) -> bool:
    """Return whether a key of a rule is 0, and so turned off; what a schedule scales never is."""
    return not isinstance(value, jax.Array) and value == 0
