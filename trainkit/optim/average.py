"""The average of the parameters over the steps, updated after each one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from trainkit.recipe.sections.average import AverageSpec

Averaging: TypeAlias = Callable[..., tuple[PyTree, Array]]
"""`(averages, count, *, params, step)` → the averages after `step` updates, and how many parameters they contain."""


def first_averages(params: PyTree) -> PyTree:
    """Return the averages before anything is averaged: a float32 copy of the parameters."""
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)


def build(spec: AverageSpec, *, steps: int) -> Averaging:
    """Return the update of the averages in a run of `steps`, which is computed in float32.

    As in `torch.optim.swa_utils.AveragedModel`, the first parameters become the average, so that it has no bias.
    """
    start = spec.first_step(steps)

    def update(averages: PyTree, count: Array, *, params: PyTree, step: Array) -> tuple[PyTree, Array]:
        enters = (step >= start) & ((step - start) % spec.every == 0)
        share = jnp.where(count == 0, 1.0, jnp.where(enters, spec.share(count), 0.0))

        def moved(average: Array, p: Any) -> Array:
            # not average + share * (p - average), which with a share of 1 would not be exactly p
            return (1 - share) * average + share * p.astype(jnp.float32)

        return jax.tree.map(moved, averages, params), count + enters

    return update
