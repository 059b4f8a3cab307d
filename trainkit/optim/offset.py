"""Updates that earlier updates change: with their average added, or moved ahead along their change."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.wrappers import Offset, Transport


class OffsetState(NamedTuple):
    """The state of the inner optimizer, and the average of its updates."""

    inner: Any
    offset: PyTree
    """The average of the updates, in float32."""


class TransportState(NamedTuple):
    """The state of the inner optimizer, and its last update."""

    inner: Any
    last: PyTree
    """The last update, in float32."""
    step: Array


def build_offset(spec: Offset, inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Return `inner` with o' = beta o + (1 - beta) u added to each update u = -learning rate x direction."""

    def update(
        grads: PyTree, state: OffsetState, params: PyTree, *, learning_rate: Array, **extras: Any
    ) -> tuple[PyTree, OffsetState]:
        directions, after = inner.update(grads, state.inner, params, learning_rate=learning_rate, **extras)
        share = (1 - spec.beta) * learning_rate
        offset = jax.tree.map(lambda o, d: spec.beta * o + share * d, state.offset, directions)
        over_rate = _inverse(learning_rate)
        return jax.tree.map(lambda d, o: d + over_rate * o, directions, offset), OffsetState(after, offset)

    return optax.GradientTransformationExtraArgs(lambda params: OffsetState(inner.init(params), _zeros(params)), update)


def build_transport(
    spec: Transport, inner: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Return `inner` with scale x beta / (1 - beta) (u - u_last) added to each update u but the first."""
    strength = spec.scale * spec.beta / (1 - spec.beta)

    def update(
        grads: PyTree, state: TransportState, params: PyTree, *, learning_rate: Array, **extras: Any
    ) -> tuple[PyTree, TransportState]:
        directions, after = inner.update(grads, state.inner, params, learning_rate=learning_rate, **extras)
        over_rate, ahead = _inverse(learning_rate), jnp.where(state.step > 0, strength, 0)
        moved = jax.tree.map(lambda d, last: d + ahead * (d - over_rate * last), directions, state.last)
        last = jax.tree.map(lambda d: learning_rate * d, directions)
        return moved, TransportState(after, last, jnp.minimum(state.step + 1, 1))

    def init(params: PyTree) -> TransportState:
        return TransportState(inner.init(params), _zeros(params), jnp.int32(0))

    return optax.GradientTransformationExtraArgs(init, update)


def _zeros(params: PyTree) -> PyTree:
    return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)


def _inverse(rate: Array) -> Array:
    """Return 1 / rate; 0 where the rate is 0, so that parameters stay in such a step."""
    return jnp.where(rate > 0, 1 / jnp.where(rate > 0, rate, 1), 0)
