"""Sophia: momentum divided by an estimate of the Hessian's diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.optim.moments import store_averages
from trainkit.recipe.optimizers.adam import Sophia

#: Half the distance between the two parameters whose gradients are compared, for each number of the parameters.
RADIUS = 1e-3


class SophiaState(NamedTuple):
    """Averages of the gradients (`mu`) and of the estimates of the diagonal of the Hessian."""

    step: Array
    mu: PyTree
    curvature: PyTree
    clipped: Array
    """The share of the last directions that were clipped."""

    def metrics(self) -> dict[str, Array]:
        """Return the share of the last directions that were clipped."""
        return {"clipped_share": self.clipped}


def build(spec: Sophia) -> optax.GradientTransformationExtraArgs:
    """Return Sophia with Hutchinson's estimate (Liu et al. 2023, algorithms 1 and 3)."""
    b1, b2 = spec.betas

    def init(params: PyTree) -> SophiaState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SophiaState(jnp.int32(0), zeros, zeros, jnp.float32(0))

    def update(
        grads: PyTree,
        state: SophiaState,
        params: PyTree,
        *,
        key: PRNGKeyArray,
        grad_fn: Callable[[PyTree], tuple[Array, PyTree]],
        **_: Any,
    ) -> tuple[PyTree, SophiaState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)

        def estimated() -> PyTree:
            diagonal = hessian_diagonal(grad_fn, params, key)
            return jax.tree.map(lambda h, d: b2 * h + (1 - b2) * d, state.curvature, diagonal)

        curvature = jax.lax.cond(state.step % spec.every == 0, estimated, lambda: state.curvature)
        ratios = jax.tree.map(lambda m, h: m / jnp.maximum(spec.gamma * h, spec.eps), mu, curvature)
        directions = jax.tree.map(lambda r: jnp.clip(r, -spec.clip, spec.clip), ratios)
        clipped = sum((jnp.abs(r) >= spec.clip).sum(dtype=jnp.float32) for r in jax.tree.leaves(ratios))
        share = jnp.asarray(clipped / sum(r.size for r in jax.tree.leaves(ratios)), jnp.float32)
        return directions, SophiaState(state.step + 1, mu, curvature, share)

    inner = optax.GradientTransformationExtraArgs(init, update)
    return store_averages(inner, spec.moments, {"mu": True, "curvature": True})


def hessian_diagonal(grad_fn: Callable[[PyTree], tuple[Array, PyTree]], params: PyTree, key: PRNGKeyArray) -> PyTree:
    """Return Hutchinson's estimate of the diagonal of the Hessian: u * (H u) for random signs u.

    H u comes from two gradients along u, since the gradients of attention's kernels have no derivative of their own.
    """
    structure: Any
    leaves, structure = jax.tree.flatten(params)
    signs = structure.unflatten(
        [jax.random.rademacher(jax.random.fold_in(key, i), leaf.shape, jnp.float32) for i, leaf in enumerate(leaves)]
    )

    def gradients_at(distance: float) -> PyTree:
        return grad_fn(jax.tree.map(lambda p, u: (p + distance * u).astype(p.dtype), params, signs))[1]

    ahead, behind = gradients_at(RADIUS), gradients_at(-RADIUS)
    return jax.tree.map(lambda u, a, b: u * (a - b) / (2 * RADIUS), signs, ahead, behind)
