"""Norms of layers, and updates that are a share of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from trainkit.recipe.optimizers.adam import Lamb
from trainkit.recipe.optimizers.first_order import Lars


def layer_norm(x: Float[Array, ...], *, stacked: bool) -> Float[Array, ...]:
    """Return the norm of a parameter, or of each layer's in a stack, in float32; its other axes are of length 1."""
    axes = tuple(range(stacked, x.ndim))
    return jnp.sqrt(jnp.square(x.astype(jnp.float32)).sum(axes, keepdims=True))


def trust_ratio(spec: Lamb | Lars, *, stacked: bool) -> optax.GradientTransformation:
    """Return directions scaled to `trust` times the norm of their parameters, layer by layer (You et al. 2017).

    Where either norm is 0 the direction stays as it is.
    """

    def scaled(direction: Array, param: Array) -> Array:
        of_param, of_direction = layer_norm(param, stacked=stacked), layer_norm(direction, stacked=stacked)
        usable = (of_param > 0) & (of_direction > 0)
        return direction * jnp.where(usable, spec.trust * of_param / jnp.where(usable, of_direction, 1), 1)

    def update(directions: PyTree, params: PyTree) -> PyTree:
        return jax.tree.map(scaled, directions, params)

    return optax.stateless(update)
