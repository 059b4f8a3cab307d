"""The state: everything that resumes, in one pytree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from trainkit.models.adapters import trainable
from trainkit.models.stack import LanguageModel
from trainkit.optim.average import first_averages
from trainkit.recipe.sections.guard import Guard
from trainkit.recipe.sections.outputs import Statistics
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.train.guard import GuardState, first_guard
from trainkit.train.statistics import History, first_history

#: Purposes of random numbers in a step and in an evaluation. The first state has 0, samples have 1: see
#: `infer/sampler.py`.
MOMENTS, PARAMETERS, LOSS, EVALUATION, DROPOUT, STATISTICS = 2, 3, 4, 5, 6, 7
#: The loss scale of the first step, for the mean loss of a micro-batch.
INITIAL_SCALE = 2.0**16
#: The loss scale is doubled after so many steps without an overflow.
SCALE_PATIENCE = 2000


class Live(eqx.Module):
    """What commands may change during a run: arrays, so that nothing retraces."""

    rate_factor: Float[Array, ""]
    """Multiplies the schedule's learning rate."""
    decay_start: Int[Array, ""]
    """The step after which a command began the decay, or `NEVER`."""
    decay_end: Int[Array, ""] | None = None
    """The step at which a run that ends in time was last ordered to end, or `NEVER`; None for other runs."""


class LossScale(eqx.Module):
    """Keeps small gradients above zero in float16 (Micikevicius et al. 2018, section 3.2).

    The loss is multiplied by `value`, and the gradients are divided by it in float32.
    """

    value: Float[Array, ""]
    good_steps: Int[Array, ""]
    """Steps since the last overflow or the last doubling."""


class State(eqx.Module):
    """What one step passes to the next."""

    params: PyTree
    """The trainable part of the model, None in place of the rest."""
    frozen: PyTree
    """The rest of the model, None in place of the trainable part."""
    optimizer: optax.OptState
    step: Int[Array, ""]
    """Completed updates."""
    key: PRNGKeyArray
    """Never changes: random numbers of a step derive from (key, purpose, step) by `fold_in`."""
    live: Live
    loss_scale: LossScale | None = None
    """None unless the step computes in float16."""
    averages: PyTree | None = None
    """Averages of `params`, in float32; None unless the recipe asks for them."""
    average_count: Int[Array, ""] | None = None
    """How many parameters `averages` contains: 0 until averaging begins. None without averages."""
    history: History | None = None
    """None unless a statistic of the recipe needs it."""
    guard: GuardState | None = None
    """None unless [guard] decides something inside the step."""


def initial_live(*, timed: bool = False) -> Live:
    """Return the values before any command: the schedule of the recipe. `timed` if the run ends at a time."""
    return Live(jnp.float32(1), jnp.int32(NEVER), jnp.int32(NEVER) if timed else None)


def initial_scale() -> LossScale:
    """Return the loss scale of the first step."""
    return LossScale(jnp.float32(INITIAL_SCALE), jnp.int32(0))


def adjusted_scale(scale: LossScale, finite: Bool[Array, ""]) -> LossScale:
    """Return the loss scale of the next step: half after an overflow, double after `SCALE_PATIENCE` good steps."""
    good = jnp.where(finite, scale.good_steps + 1, 0)
    doubled = good >= SCALE_PATIENCE
    factor = jnp.where(finite, jnp.where(doubled, 2.0, 1.0), 0.5)
    # bounded, because a gradient that stays zero would double it for ever
    value = jnp.minimum(scale.value * factor, jnp.finfo(jnp.float32).max)
    return LossScale(value, jnp.where(doubled, 0, good))


def init(
    key: PRNGKeyArray,
    *,
    model: Callable[[PRNGKeyArray], LanguageModel],
    optimizer: optax.GradientTransformation,
    compute: jnp.dtype,
    averages: bool = False,
    statistics: Statistics | None = None,
    timed: bool = False,
    guard: Guard | None = None,
) -> State:
    """Return the state before the first step. `model` builds the initial model in the dtype of its parameters.

    `averages` says whether the parameters are averaged; `statistics` may need a history; `timed` says whether the
    run ends at a time; `guard` may need to remember losses and skips.
    """
    initial = model(jax.random.fold_in(key, 0))
    params, frozen = eqx.partition(initial, trainable(initial))
    scale = initial_scale() if compute == jnp.float16 else None
    state = State(params, frozen, optimizer.init(params), jnp.int32(0), key, initial_live(timed=timed), scale)
    if averages:
        state = replace(state, averages=first_averages(params), average_count=jnp.int32(0))
    if statistics:
        state = replace(state, history=first_history(statistics, params))
    return replace(state, guard=first_guard(guard)) if guard else state


def key_of(state: State, purpose: int) -> PRNGKeyArray:
    """Return the key of a purpose in the step after `state`."""
    return key_of_step(state.key, purpose, state.step)


def key_of_step(key: PRNGKeyArray, purpose: int, step: int | Array) -> PRNGKeyArray:
    """Return the key of a purpose in the update from `step` to `step` + 1 of a run with this key."""
    return jax.random.fold_in(jax.random.fold_in(key, purpose), step)


def without_update(state: State, number: int) -> State:
    """Return the state after step `number`, which is left out: only the number of its steps changes. Does not wait."""
    return replace(state, step=jax.device_put(np.int32(number), state.step.sharding))


def with_averages(state: State) -> State:
    """Return a state that has its averages as its parameters, in float32, and no averages."""
    return replace(state, params=state.averages, averages=None, average_count=None)


def without_frozen(state: State) -> State:
    """Return the part of a state that a checkpoint holds: the frozen parameters are loaded again instead."""
    return replace(state, frozen=None)
