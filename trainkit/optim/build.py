"""From spec to gradient transformation."""

from __future__ import annotations

import jax
import optax
from jaxtyping import PyTree

from trainkit.optim import groups
from trainkit.recipe.optimizer import Optimizer


def build(spec: Optimizer, names: PyTree[str]) -> optax.GradientTransformation:
    """Gradients to descent directions; the step multiplies them by the negative learning rate.

    Args:
        names: the trainable parameters with every leaf replaced by its path.

    Raises:
        TrainkitError: a group matches no parameter.
    """
    groups.check(spec, names)
    decays, factors = groups.weight_decays(spec, names), groups.learning_rate_factors(spec, names)
    transforms = [optax.scale_by_adam(*spec.betas, eps=spec.eps)]
    if any(jax.tree.leaves(decays)):
        transforms.append(
            optax.stateless(lambda u, p: jax.tree.map(lambda u, p, d: u + d * p if d else u, u, p, decays))
        )
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        transforms.append(optax.stateless(lambda u, _: jax.tree.map(lambda u, f: u * f, u, factors)))
    return optax.chain(*transforms)
