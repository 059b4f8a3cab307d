"""All that resumes is one pytree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from trainkit.models.adapters import trainable
from trainkit.models.stack import LanguageModel
from trainkit.recipe.sections.schedule import NEVER
from trainkit.train import loss_scale
from trainkit.train.loss_scale import LossScale


class Live(eqx.Module):
    """What a person may change while the run goes on: arrays, so that nothing retraces, saved with the rest."""

    rate_factor: Float[Array, ""]
    """Of the schedule's learning rate."""
    decay_start: Int[Array, ""]
    """The step after which the decay was ordered to begin, or `NEVER`."""


class State(eqx.Module):
    """What one step hands to the next."""

    params: PyTree
    """The trainable part of the model, None in place of the rest."""
    frozen: PyTree
    """The rest of the model, None in place of the trainable part."""
    optimizer: optax.OptState
    step: Int[Array, ""]
    """Updates done."""
    key: PRNGKeyArray
    """Never consumed: what is random in a step derives from (key, purpose, step) by `fold_in`."""
    live: Live
    loss_scale: LossScale | None = None
    """None where the loss needs none, which is anywhere but in float16."""


def initial_live() -> Live:
    """As the recipe says, nothing ordered."""
    return Live(jnp.float32(1), jnp.int32(NEVER))


def init(
    key: PRNGKeyArray,
    *,
    model: Callable[[PRNGKeyArray], LanguageModel],
    optimizer: optax.GradientTransformation,
    compute: jnp.dtype,
) -> State:
    """The state before the first step. `model` makes the initial model, in the dtype in which it is kept."""
    initial = model(jax.random.fold_in(key, 0))
    params, frozen = eqx.partition(initial, trainable(initial))
    scale = loss_scale.initial() if compute == jnp.float16 else None
    return State(params, frozen, optimizer.init(params), jnp.int32(0), key, initial_live(), scale)


def without_frozen(state: State) -> State:
    """What a checkpoint holds: all but the frozen part, which is made again from where it came."""
    return replace(state, frozen=None)
