"""Muon: momentum, orthogonalised."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree
from optax import contrib

from trainkit.optim.moments import stored
from trainkit.recipe.optimizers.matrix import Muon

#: Root mean square of AdamW's updates, which `scale = "rms"` reproduces (Liu et al. 2025, section 2.2).
ADAMW_RMS = 0.2


def build(spec: Muon) -> optax.GradientTransformation:
    """Return gradients of matrices (…, inputs, outputs) → descent directions, before weight decay.

    The momentum of each matrix is made nearly orthogonal by the quintic Newton-Schulz iteration of Jordan et al. 2024,
    with their coefficients: its singular values end between about 0.7 and 1.2. Leading axes, such as layers and
    experts, hold separate matrices. The work is optax's.
    """
    orthogonal = contrib.scale_by_muon(
        ns_steps=spec.iterations,
        beta=spec.momentum,
        nesterov=spec.nesterov,
        mu_dtype=jnp.float32,
        weight_dimension_numbers=_last_two_axes,
    )
    momentum = stored(orthogonal, spec.moments, {"mu": True})
    by_shape = optax.stateless(lambda updates, _: jax.tree.map(lambda u: u * _scale(spec, u.shape), updates))
    return optax.chain(momentum, by_shape)


def _scale(spec: Muon, shape: tuple[int, ...]) -> float:
    inputs, outputs = shape[-2:]
    if spec.scale == "rms":
        return ADAMW_RMS * max(inputs, outputs) ** 0.5
    return max(1.0, outputs / inputs) ** 0.5


def _last_two_axes(params: PyTree) -> PyTree[Any]:
    return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1), params)
