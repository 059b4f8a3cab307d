"""Steps that are skipped because their gradient is far greater than usual."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.wrappers import SkipOutliers


class SkipState(NamedTuple):
    """The state of the inner optimizer, and the norms that gradients usually have."""

    inner: Any
    average: Array
    """Of the norms of the gradients that were not skipped."""
    taken: Array
    """Steps that were not skipped."""
    skipped: Array
    """Steps that were."""

    def metrics(self) -> dict[str, Array]:
        """Return the number of skipped steps."""
        return {"skipped": self.skipped}


def build(spec: SkipOutliers, inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Return `inner`, whose state and parameters stay as they are in a step with an outlier for a gradient."""

    def init(params: PyTree) -> SkipState:
        return SkipState(inner.init(params), jnp.float32(0), jnp.int32(0), jnp.int32(0))

    def update(
        grads: PyTree, state: SkipState, params: PyTree | None = None, **extras: Any
    ) -> tuple[PyTree, SkipState]:
        norm = optax.tree.norm(grads)
        directions, after = inner.update(grads, state.inner, params, **extras)
        outlier = (state.taken >= spec.window) & ~(norm <= spec.factor * state.average)
        # the mean of the first `window` norms, then an average with their weight
        share = 1 / jnp.minimum(state.taken + 1, spec.window)
        average = jnp.where(outlier, state.average, state.average + share * (norm - state.average))
        kept, directions = jax.tree.map(
            lambda old, new: jnp.where(outlier, old, new),
            (state.inner, jax.tree.map(jnp.zeros_like, directions)),
            (after, directions),
        )
        return directions, SkipState(kept, average, state.taken + ~outlier, state.skipped + outlier)

    return optax.GradientTransformationExtraArgs(init, update)
