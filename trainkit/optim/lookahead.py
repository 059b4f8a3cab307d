"""Lookahead: fast steps, and slow ones along the way that they went."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.wrappers import Lookahead


class LookaheadState(NamedTuple):
    """The state of the inner optimizer, and the slow parameters of Lookahead."""

    inner: Any
    slow: PyTree
    """Parameters after the last return, in float32."""
    step: Array


def build(spec: Lookahead, inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Return `inner`, every few steps from which a share of the way is kept (Zhang et al. 2019, algorithm 1)."""

    def init(params: PyTree) -> LookaheadState:
        return LookaheadState(inner.init(params), _copy(params), jnp.int32(0))

    def update(
        grads: PyTree, state: LookaheadState, params: PyTree, *, learning_rate: Array, **extras: Any
    ) -> tuple[PyTree, LookaheadState]:
        directions, after = inner.update(grads, state.inner, params, learning_rate=learning_rate, **extras)
        step = state.step + 1
        returns = (step % spec.every == 0) & (learning_rate > 0)
        rate = jnp.where(learning_rate > 0, learning_rate, 1)

        def returned(p: Array, d: Array, slow: Array) -> tuple[Array, Array]:
            p = p.astype(jnp.float32)
            there = slow + spec.share * (p - learning_rate * d - slow)
            return jnp.where(returns, (p - there) / rate, d), jnp.where(returns, there, slow)

        structure: Any
        leaves, structure = jax.tree.flatten(params)
        pairs = map(returned, leaves, structure.flatten_up_to(directions), structure.flatten_up_to(state.slow))
        moved, slow = zip(*pairs, strict=True)
        return structure.unflatten(moved), LookaheadState(after, structure.unflatten(slow), step)

    return optax.GradientTransformationExtraArgs(init, update)


def _copy(params: PyTree) -> PyTree:
    # a copy of its own: parameters and state are donated, and a buffer cannot be twice
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
