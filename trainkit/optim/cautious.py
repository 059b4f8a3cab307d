"""Cautious updates: only where direction and gradient agree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.wrappers import Cautious


def build(
    spec: Cautious, inner: optax.GradientTransformationExtraArgs, *, stacked: PyTree[bool]
) -> optax.GradientTransformationExtraArgs:
    """Return `inner` with its directions masked, layer by layer (Liang et al. 2024, algorithm 1)."""

    def update(grads: PyTree, state: Any, params: PyTree | None = None, **extras: Any) -> tuple[PyTree, Any]:
        directions, state = inner.update(grads, state, params, **extras)
        return jax.tree.map(_mask, directions, grads, stacked), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _mask(direction: Array, grad: Array, layers: bool) -> Array:
    agrees = (direction * grad > 0).astype(direction.dtype)
    share = agrees.mean(tuple(range(layers, agrees.ndim)), keepdims=True)
    return direction * agrees / jnp.maximum(share, 1e-3)
