"""Muon: momentum, orthogonalised."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from optax import contrib

from trainkit.optim.moments import store_averages
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.matrix import Coefficients, Muon

#: Root mean square of AdamW's updates, which `scale = "rms"` reproduces (Liu et al. 2025, section 2.2).
ADAMW_RMS = 0.2
#: The polynomial a x + b x^3 + c x^5 of every iteration (Jordan et al. 2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
#: The best polynomial of each iteration where singular values begin between 1e-3 and 1; the last one is repeated
#: (Amsel et al. 2025, arXiv:2505.16932, appendix A).
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
#: Before each of them but the last, matrices are divided by this, so that rounding leaves no singular value above 1.
MARGIN = 1.01
#: Added to the norm of a matrix, and to the root of a sum of squares.
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
        made = on_own_matrices(lambda x: orthogonal(x, spec.coefficients, spec.iterations), wide)
        factors = [x.mT if is_tall(leaf) else x for leaf, x in zip(leaves, made, strict=True)]
        scaled = [_scale(spec, leaf, x) * x for leaf, x in zip(leaves, factors, strict=True)]
        return structure.unflatten(scaled), contrib.MuonState(count, mu, state.ns_coeffs)

    muon = optax.GradientTransformation(init, update)
    # a chain even without LaProp: the state has had its paths ever since
    rule = optax.chain(laprop(spec.laprop_decay, TINY), muon) if spec.laprop else optax.chain(muon)
    return store_averages(rule, spec.moments, {"mu": True, "nu": False})


class LaPropState(NamedTuple):
    nu: PyTree
    """The decaying sum of the squares of the gradients."""


def laprop(decay: float, eps: float) -> optax.GradientTransformation:
    """Return gradients over the root of a decaying sum of their squares, as ZQZCalin's fork of Trainit has it."""

    def update(grads: PyTree, state: LaPropState, params: PyTree | None = None) -> tuple[PyTree, LaPropState]:
        nu = jax.tree.map(lambda v, g: decay * v + g * g, state.nu, grads)
        return jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), grads, nu), LaPropState(nu)

    return optax.GradientTransformation(lambda params: LaPropState(jax.tree.map(jnp.zeros_like, params)), update)


def orthogonal(matrices: Array, coefficients: Coefficients, iterations: int) -> Array:
    """Return matrices (…, m, n) with their singular vectors, and singular values near 1. It is less work if m <= n."""
    polynomials, margin = [NEWTON_SCHULZ] * iterations, 1.0
    if coefficients == "polar-express":
        safe = [(a / MARGIN, b / MARGIN**3, c / MARGIN**5) for a, b, c in POLAR_EXPRESS[:-1]]
        polynomials, margin = (safe + [POLAR_EXPRESS[-1]] * iterations)[:iterations], MARGIN
    x = matrices / (margin * jnp.sqrt(jnp.square(matrices).sum((-2, -1), keepdims=True)) + TINY)
    for a, b, c in polynomials:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x


def is_tall(matrices: Array) -> bool:
    """Return whether matrices (…, m, n) have more rows than columns."""
    return matrices.shape[-2] > matrices.shape[-1]


def _scale(spec: Muon, matrices: Array, factors: Array) -> float | Array:
    """Return what multiplies the polar factors of matrices."""
    inputs, outputs = matrices.shape[-2:]
    if spec.scale == "nuclear":
        return (matrices * factors).sum((-2, -1), keepdims=True)
    if spec.scale == "rms":
        return ADAMW_RMS * max(inputs, outputs) ** 0.5
    return max(1.0, outputs / inputs) ** 0.5
