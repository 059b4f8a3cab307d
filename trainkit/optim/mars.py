"""MARS: gradients corrected by how they changed since the last step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.norms import layer_norm
from trainkit.recipe.optimizers.wrappers import Mars


class MarsState(NamedTuple):
    """The state of the inner optimizer, and what MARS compares the next gradients with."""

    inner: Any
    last: PyTree
    """The last gradients or, of the exact method, the last parameters, in float32."""
    step: Array


def build(
    spec: Mars, inner: optax.GradientTransformationExtraArgs, *, stacked: PyTree[bool]
) -> optax.GradientTransformationExtraArgs:
    """Return `inner`, given corrected gradients (Yuan et al. 2024, algorithms 1 and 2).

    c = g + gamma beta / (1 - beta) (g - g_last), clipped to norm 1; the first gradient is not corrected.
    """
    strength = spec.gamma * spec.beta / (1 - spec.beta)

    def init(params: PyTree) -> MarsState:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return MarsState(inner.init(params), zeros, jnp.int32(0))

    def update(
        grads: PyTree,
        state: MarsState,
        params: PyTree,
        *,
        grad_fn: Callable[[PyTree], tuple[Array, PyTree]],
        **extras: Any,
    ) -> tuple[PyTree, MarsState]:
        now, before = grads, state.last
        if spec.exact:
            at = jax.tree.map(lambda old, p: old.astype(p.dtype), state.last, params)
            # both unclipped, so that their difference is that of the parameters alone
            (_, now), (_, before) = grad_fn(params), grad_fn(at)

        def corrected(g: Array, now: Array, before: Array, layers: bool) -> Array:
            c = jnp.where(state.step > 0, g + strength * (now - before), g)
            return c / jnp.maximum(layer_norm(c, stacked=layers), 1)

        directions, after = inner.update(
            jax.tree.map(corrected, grads, now, before, stacked), state.inner, params, grad_fn=grad_fn, **extras
        )
        last = params if spec.exact else grads
        return directions, MarsState(after, jax.tree.map(lambda x: x.astype(jnp.float32), last), state.step + 1)

    return optax.GradientTransformationExtraArgs(init, update)
