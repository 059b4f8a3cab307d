"""Weight decay of every kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.spec import OptimizerSpec


def with_decay(
    rule: optax.GradientTransformation, rules: PyTree[OptimizerSpec], decays: PyTree[float]
) -> optax.GradientTransformationExtraArgs:
    """Return `rule` with weight decay; its state is that of the rule alone, so that weight decay may change in a run.

    The extra argument `shares` of an update scales every weight decay; without it they are as given.

    Args:
        rules: the rule of each parameter, whose `decay_type` says how it decays.
        decays: the weight decay of each parameter.
    """
    rule = optax.with_extra_args_support(rule)
    coupled = jax.tree.map(lambda spec, d: d if spec.decay_type == "coupled" else 0.0, rules, decays)

    def update(grads: PyTree, state: Any, params: PyTree | None = None, **extras: Any) -> tuple[PyTree, Any]:
        share = extras.get("shares", {}).get("weight_decay", 1.0)
        if any(jax.tree.leaves(coupled)):
            grads = jax.tree.map(lambda g, p, d: g + d * share * p if d else g, grads, params, coupled)
        directions, state = rule.update(grads, state, params, **extras)
        return jax.tree.map(partial(_decay, share=share), directions, params, rules, decays), state

    return optax.GradientTransformationExtraArgs(rule.init, update)


def _decay(direction: Array, param: Array, spec: OptimizerSpec, weight: float, *, share: float | Array) -> Array:
    """Return the direction with a `share` of the weight decay, of all kinds but the coupled one."""
    if not weight or spec.decay_type == "coupled":
        return direction
    term = weight * share * param
    if spec.decay_type == "independent":
        term /= spec.learning_rate
    elif spec.decay_type == "cautious":
        term = jnp.where(direction * param > 0, term, 0)
    return direction + term
