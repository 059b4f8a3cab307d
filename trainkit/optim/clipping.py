"""Clipping of gradients and updates, beside that of the global norm in the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.norms import layer_norm
from trainkit.recipe.optimizers.wrappers import ClipAdaptive, ClipLeaf, ClipUpdate, ClipValue

Inner: TypeAlias = optax.GradientTransformationExtraArgs


def clip_value(spec: ClipValue, inner: Inner) -> Inner:
    """Return `inner` with every number of the gradient clipped."""
    return _before(inner, lambda grads, _: jax.tree.map(lambda g: jnp.clip(g, -spec.limit, spec.limit), grads))


def clip_leaf(spec: ClipLeaf, inner: Inner, *, stacked: PyTree[bool]) -> Inner:
    """Return `inner` with the norm of each parameter's gradient clipped, layer by layer."""

    def clipped(g: Array, layers: bool) -> Array:
        return g * jnp.minimum(1, spec.limit / jnp.maximum(layer_norm(g, stacked=layers), 1e-12))

    return _before(inner, lambda grads, _: jax.tree.map(clipped, grads, stacked))


def clip_adaptive(spec: ClipAdaptive, inner: Inner, *, stacked: PyTree[bool]) -> Inner:
    """Return `inner` with gradients clipped unit by unit (Brock et al. 2021, equation 3).

    A unit is an output of a matrix (…, inputs, outputs), or all of a vector.
    """

    def clipped(g: Array, p: Array, layers: bool) -> Array:
        axes = -2 if g.ndim - layers >= 2 else -1
        of_grad, of_weights = (jnp.linalg.norm(x.astype(jnp.float32), axis=axes, keepdims=True) for x in (g, p))
        most = spec.limit * jnp.maximum(of_weights, spec.eps)
        return jnp.where(of_grad > most, g * most / jnp.maximum(of_grad, 1e-12), g)

    return _before(inner, lambda grads, params: jax.tree.map(clipped, grads, params, stacked))


def clip_update(spec: ClipUpdate, inner: Inner) -> Inner:
    """Return `inner` with directions scaled so that the norm of learning rate x directions is at most `limit`."""

    def update(
        grads: PyTree, state: Any, params: PyTree | None = None, *, learning_rate: Array, **extras: Any
    ) -> tuple[PyTree, Any]:
        directions, state = inner.update(grads, state, params, learning_rate=learning_rate, **extras)
        norm = learning_rate * optax.tree.norm(directions)
        scale = jnp.minimum(1, spec.limit / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda d: d * scale, directions), state

    return Inner(inner.init, update)


def _before(inner: Inner, change: Callable[[PyTree, PyTree], PyTree]) -> Inner:
    def update(grads: PyTree, state: Any, params: PyTree | None = None, **extras: Any) -> tuple[PyTree, Any]:
        return inner.update(change(grads, params), state, params, **extras)

    return Inner(inner.init, update)
