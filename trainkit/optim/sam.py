"""Sharpness-aware minimisation: the gradient from where the loss is greatest nearby."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.wrappers import Sam


def build(spec: Sam, inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Return `inner`, given the gradient at p + rho g / |g| (Foret et al. 2021, algorithm 1).

    With `adaptive`, at p + rho p^2 g / |p g| (Kwon et al. 2021, equation 7). `train.max_grad_norm` clips the first
    gradient only, which gives the direction; clip the other with a wrapper before this one.
    """

    def update(
        grads: PyTree,
        state: Any,
        params: PyTree,
        *,
        grad_fn: Callable[[PyTree], tuple[Array, PyTree]],
        **extras: Any,
    ) -> tuple[PyTree, Any]:
        scaled = jax.tree.map(lambda g, p: g * jnp.abs(p) if spec.adaptive else g, grads, params)
        distance = spec.rho / jnp.maximum(optax.tree.norm(scaled), 1e-12)

        def moved(p: Array, s: Array) -> Array:
            p = p.astype(jnp.float32)  # rounded to bfloat16, most numbers would not move at all
            return p + distance * (jnp.abs(p) * s if spec.adaptive else s)

        _, there = grad_fn(jax.tree.map(moved, params, scaled))
        return inner.update(there, state, params, grad_fn=grad_fn, **extras)

    return optax.GradientTransformationExtraArgs(inner.init, update)
