"""Weight decay of every kind."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.spec import OptimizerSpec


def decayed(
    rule: optax.GradientTransformation, rules: PyTree[OptimizerSpec], decays: PyTree[float]
) -> Iterator[optax.GradientTransformation]:
    """Yield the transformations of `rule` with weight decay, in their order.

    Args:
        rules: the rule of each parameter, whose `decay_type` says how it decays.
        decays: the weight decay of each parameter.
    """
    coupled = jax.tree.map(lambda spec, d: d if spec.decay_type == "coupled" else 0.0, rules, decays)
    if any(jax.tree.leaves(coupled)):
        yield optax.stateless(lambda g, p: jax.tree.map(lambda g, p, d: g + d * p if d else g, g, p, coupled))
    yield rule

    def decay(direction: Array, param: Array, spec: OptimizerSpec, weight: float) -> Array:
        if not weight or spec.decay_type == "coupled":
            return direction
        term = weight * param
        if spec.decay_type == "independent":
            term /= spec.learning_rate
        elif spec.decay_type == "cautious":
            term = jnp.where(direction * param > 0, term, 0)
        return direction + term

    yield optax.stateless(lambda u, p: jax.tree.map(decay, u, p, rules, decays))
