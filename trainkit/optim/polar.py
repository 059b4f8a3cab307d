"""Polar descent: Adam of the norm of the parameters, and Adam of their direction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.moments import store_averages
from trainkit.recipe.optimizers.adam import PolarDescent


class PolarState(NamedTuple):
    """Averages of gradients and of their squares: for the direction of all parameters, and for their norm."""

    step: Array
    mu: PyTree
    """The average of the gradients of the direction."""
    nu: PyTree
    """The average of their squares."""
    norm_mu: Array
    norm_nu: Array


def build(spec: PolarDescent) -> optax.GradientTransformationExtraArgs:
    """Return polar descent, with all parameters as one vector x = r u, r = |x|.

    The gradient g has the parts r g for u, and <g, u> for r. Adam updates both; u is normalized after it. Where the
    learning rate is 0, or all parameters are 0, they stay.
    """
    b1, b2 = spec.betas

    def init(params: PyTree) -> PolarState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return PolarState(jnp.int32(0), zeros, zeros, jnp.float32(0), jnp.float32(0))

    def update(
        grads: PyTree, state: PolarState, params: PyTree, *, learning_rate: Array, **_: Any
    ) -> tuple[PyTree, PolarState]:
        step, rate = state.step + 1, jnp.asarray(learning_rate, jnp.float32)

        def averages(mu: Array, nu: Array, g: Array) -> tuple[Array, Array]:
            return b1 * mu + (1 - b1) * g, b2 * nu + (1 - b2) * g * g

        def adam(mu: Array, nu: Array) -> Array:
            return mu / (1 - b1**step) / (jnp.sqrt(nu / (1 - b2**step)) + spec.eps)

        norm = optax.tree.norm(params)
        safe_norm = jnp.maximum(norm, 1e-30)
        both = jax.tree.map(lambda m, v, g: averages(m, v, norm * g), state.mu, state.nu, grads)
        mu, nu = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0)), both)
        norm_mu, norm_nu = averages(state.norm_mu, state.norm_nu, optax.tree.vdot(grads, params) / safe_norm)
        direction = jax.tree.map(lambda p, m, v: p / safe_norm - rate * adam(m, v), params, mu, nu)
        after = norm - spec.norm_rate * rate * adam(norm_mu, norm_nu)
        scale = after / jnp.maximum(optax.tree.norm(direction), 1e-30)
        over_rate = jnp.where((rate > 0) & (norm > 0), 1 / jnp.where(rate > 0, rate, 1), 0)
        moved = jax.tree.map(lambda p, u: over_rate * (p - scale * u), params, direction)
        return moved, PolarState(step, mu, nu, norm_mu, norm_nu)

    return store_averages(optax.GradientTransformationExtraArgs(init, update), spec.moments, {"mu": True, "nu": False})
