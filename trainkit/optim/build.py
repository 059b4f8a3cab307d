"""From spec to gradient transformation."""

from __future__ import annotations

import jax
import optax
from jaxtyping import PyTree

from trainkit.optim import groups
from trainkit.optim.adam import scale_by_adam
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.optimizer import Optimizer


def build(
    spec: Optimizer, names: PyTree[str], *, adapter: Adapter | None = None
) -> optax.GradientTransformationExtraArgs:
    """Gradients to descent directions; the step multiplies them by the negative learning rate.

    An update is given a `key` of its own, for what it rounds.

    Args:
        names: the trainable parameters with every leaf replaced by its path.
        adapter: what these belong to, where the model itself is frozen.

    Raises:
        TrainkitError: a group matches no parameter.
    """
    groups.check(spec, names)
    decays, factors = groups.weight_decays(spec, names), groups.learning_rate_factors(spec, names, adapter)
    b1, b2 = spec.betas
    transforms: list[optax.GradientTransformation] = [scale_by_adam(b1=b1, b2=b2, eps=spec.eps, moments=spec.moments)]
    if any(jax.tree.leaves(decays)):
        transforms.append(
            optax.stateless(lambda u, p: jax.tree.map(lambda u, p, d: u + d * p if d else u, u, p, decays))
        )
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        transforms.append(optax.stateless(lambda u, _: jax.tree.map(lambda u, f: u * f, u, factors)))
    return optax.with_extra_args_support(optax.chain(*transforms))
