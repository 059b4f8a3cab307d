"""Muon: momentum, orthogonalised."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from optax import contrib

from trainkit.optim.moments import store_averages
from trainkit.optim.orthogonal import NEWTON_SCHULZ, is_tall, orthogonal
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.matrix import Muon

#: Root mean square of AdamW's updates, which `scale = "rms"` reproduces (Liu et al. 2025, section 2.2).
ADAMW_RMS = 0.2
#: Added to the root of a sum of squares.
TINY = 1e-8


def build(spec: Muon) -> optax.GradientTransformation:
    """Return gradients of matrices (…, inputs, outputs) → descent directions, before weight decay.

    The momentum of each matrix is made nearly orthogonal by polynomials of odd degree. Leading axes, such as layers and
    experts, hold separate matrices.
    """

    def init(params: PyTree) -> contrib.MuonState:
        # nothing reads the coefficients: checkpoints have had them ever since this was optax's Muon
        zeros = jax.tree.map(jnp.zeros_like, params)
        return contrib.MuonState(jnp.int32(0), zeros, jnp.asarray(NEWTON_SCHULZ, jnp.float32))

    def update(
        grads: PyTree, state: contrib.MuonState, params: PyTree | None = None
    ) -> tuple[PyTree, contrib.MuonState]:
        beta, count = spec.momentum, state.count + 1
        mu = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state.mu, grads)
        directions = mu
        if spec.nesterov:
            first, second = (1 - beta ** (count + 1), 1 - beta**count) if spec.debias else (1, 1)
            directions = jax.tree.map(lambda m, g: beta * m / first + (1 - beta) * g / second, mu, grads)
        structure: Any
        leaves, structure = jax.tree.flatten(directions)
        # wide ones, so that a matrix and one of the transposed shape are divided over the devices together
        wide = [(leaf.mT if is_tall(leaf) else leaf,) for leaf in leaves]
        made = on_own_matrices(lambda x: orthogonal(x, spec.coefficients, spec.iterations, spec.compute), wide)
        factors = [x.mT if is_tall(leaf) else x for leaf, x in zip(leaves, made, strict=True)]
        scaled = [_scale(spec, leaf, x) * x for leaf, x in zip(leaves, factors, strict=True)]
        return structure.unflatten(scaled), contrib.MuonState(count, mu, state.ns_coeffs)

    muon = optax.GradientTransformation(init, update)
    # a chain even without LaProp: the state has had its paths ever since
    rule = optax.chain(laprop(spec.laprop_decay, TINY), muon) if spec.laprop else optax.chain(muon)
    return store_averages(rule, spec.moments, {"mu": True, "nu": False})


class LaPropState(NamedTuple):
    """The state of `laprop`."""

    nu: PyTree
    """The decaying sum of the squares of the gradients."""


def laprop(decay: float, eps: float) -> optax.GradientTransformation:
    """Return gradients over the root of a decaying sum of their squares, as ZQZCalin's fork of Trainit has it."""

    def update(grads: PyTree, state: LaPropState, params: PyTree | None = None) -> tuple[PyTree, LaPropState]:
        nu = jax.tree.map(lambda v, g: decay * v + g * g, state.nu, grads)
        return jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), grads, nu), LaPropState(nu)

    return optax.GradientTransformation(lambda params: LaPropState(jax.tree.map(jnp.zeros_like, params)), update)


def _scale(spec: Muon, matrices: Array, factors: Array) -> float | Array:
    """Return what multiplies the polar factors of matrices."""
    inputs, outputs = matrices.shape[-2:]
    if spec.scale == "nuclear":
        return (matrices * factors).sum((-2, -1), keepdims=True)
    if spec.scale == "rms":
        return ADAMW_RMS * max(inputs, outputs) ** 0.5
    return max(1.0, outputs / inputs) ** 0.5
