"""Gradient descent, scaled or signed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.moments import store_averages
from trainkit.optim.norms import layer_norm, trust_ratio
from trainkit.optim.scheduled import is_zero
from trainkit.recipe.optimizers.first_order import Lars, Lion, NormalizedSgd, Sgd


class MomentumState(NamedTuple):
    """The momentum `mu`, a decaying sum of the gradients."""

    step: Array
    mu: PyTree


def build_sgd(spec: Sgd) -> optax.GradientTransformation:
    """Return gradient descent with the momentum of torch: the first gradient is not dampened."""
    if is_zero(spec.momentum):
        return optax.identity()

    def init(params: PyTree) -> MomentumState:
        return MomentumState(jnp.int32(0), jax.tree.map(jnp.zeros_like, params))

    def update(grads: PyTree, state: MomentumState, params: PyTree | None = None) -> tuple[PyTree, MomentumState]:
        taken = jnp.where(state.step > 0, 1 - spec.dampening, 1.0)
        mu = jax.tree.map(lambda m, g: spec.momentum * m + taken * g, state.mu, grads)
        directions = jax.tree.map(lambda m, g: g + spec.momentum * m, mu, grads) if spec.nesterov else mu
        return directions, MomentumState(jnp.minimum(state.step + 1, 1), mu)

    return store_averages(optax.GradientTransformation(init, update), spec.moments, {"mu": True})


def build_normalized_sgd(spec: NormalizedSgd, *, stacked: bool = False) -> optax.GradientTransformation:
    """Return an average of gradients divided by its norm (Cutkosky & Mehta 2020, algorithm 1)."""

    def normalized(average: PyTree, params: PyTree | None) -> PyTree:
        if spec.norm == "global":
            norm = optax.tree.norm(average)
            return jax.tree.map(lambda m: m / (norm + spec.eps), average)
        return jax.tree.map(lambda m: m / (layer_norm(m, stacked=stacked) + spec.eps), average)

    average = optax.ema(spec.momentum, debias=False)
    return optax.chain(store_averages(average, spec.moments, {"ema": True}), optax.stateless(normalized))


def build_lars(spec: Lars, *, stacked: bool) -> optax.GradientTransformation:
    """Return the momentum of gradients scaled by the trust ratio (You et al. 2017, algorithm 1).

    The learning rate multiplies the momentum, not what enters it: the same while the rate is constant.
    """
    momentum = optax.trace(spec.momentum, nesterov=spec.nesterov)
    return optax.chain(trust_ratio(spec, stacked=stacked), store_averages(momentum, spec.moments, {"trace": True}))


def build_lion(spec: Lion) -> optax.GradientTransformation:
    """Return the sign of a momentum, as optax has it."""
    return store_averages(optax.scale_by_lion(*spec.betas), spec.moments, {"mu": True})
