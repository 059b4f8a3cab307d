"""PSGD: momentum that a triangular factor of each side whitens, fitted from step to step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.optim.lapack import one_by_one
from trainkit.optim.moments import store_averages
from trainkit.optim.scheduled import is_zero
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.preconditioned import Psgd, diagonal_sides

#: How often the factors of a matrix are given the same scale, as a share of the updates of factors.
BALANCED = 0.01
#: The purposes of the random numbers of a step, beyond those that round averages (`moments.py`).
WHETHER, BALANCE, PROBE = ((1 << 30) + number for number in range(3))

Factors = tuple[Array, Array]
"""Of matrices (…, m, n): of each side an upper triangle (…, side, side), or a diagonal (…, side, 1)."""


class PsgdState(NamedTuple):
    """The average of the gradients (`mu`), and the triangular factors of the preconditioners of both sides."""

    step: Array
    mu: PyTree
    factors: PyTree


def build(spec: Psgd) -> optax.GradientTransformationExtraArgs:
    """Return PSGD of matrices (…, m, n), whose leading axes hold separate matrices.

    The preconditioner of a matrix is Q^T Q on each side (Li 2015, arXiv:1512.04202; Li 2018, arXiv:1809.10232). The
    factors Q minimise the whitening loss of the momentum (Pooladzandi & Li 2024, arXiv:2402.04553), as in the authors'
    `kron` and its implementation for JAX, `psgd_jax`.
    """

    def init(params: PyTree) -> PsgdState:
        zeros = None if is_zero(spec.momentum) else jax.tree.map(jnp.zeros_like, params)
        return PsgdState(jnp.int32(0), zeros, jax.tree.map(lambda p: _first_factors(spec, p.shape), params))

    def update(
        grads: PyTree, state: PsgdState, params: PyTree | None = None, *, key: PRNGKeyArray, **_: Any
    ) -> tuple[PyTree, PsgdState]:
        step, mu, whitened = state.step + 1, state.mu, grads
        if not is_zero(spec.momentum):
            mu = jax.tree.map(lambda m, g: spec.momentum * m + (1 - spec.momentum) * g, mu, grads)
            whitened = jax.tree.map(lambda m: m / (1 - spec.momentum**step), mu)
        structure: Any
        matrices, structure = jax.tree.flatten(whitened)
        factors = structure.flatten_up_to(state.factors)
        updates = jax.random.uniform(jax.random.fold_in(key, WHETHER)) < _probability(spec, step)
        factors = jax.lax.cond(updates, lambda f: _next_factors(spec, f, matrices, key), lambda f: f, factors)
        directions = on_own_matrices(
            lambda g, q: _limited(_whiten(g, q), spec.limit), list(zip(matrices, factors, strict=True))
        )
        return structure.unflatten(directions), PsgdState(step, mu, structure.unflatten(factors))

    return store_averages(optax.GradientTransformationExtraArgs(init, update), spec.moments, {"mu": True})


def _first_factors(spec: Psgd, shape: tuple[int, ...]) -> Factors:
    def of(side: int, diagonal: bool) -> Array:
        return jnp.tile(jnp.ones((side, 1)) if diagonal else jnp.eye(side), (*shape[:-2], 1, 1))

    left, right = map(of, shape[-2:], diagonal_sides(shape, spec.longest_side, spec.diagonal))
    return left, right


def _probability(spec: Psgd, step: Array) -> Array:
    """Return how probable an update of the factors is in a step, from 1: certain at first, then less and less."""
    return jnp.clip(jnp.exp(-spec.probability_decay * (step - spec.every_step_until)), spec.least_probability, 1.0)


def _next_factors(spec: Psgd, factors: list[Factors], matrices: list[Array], key: PRNGKeyArray) -> list[Factors]:
    """Return the factors after a step along the gradient of the whitening loss at a random probe."""
    keys = [
        _keys(jax.random.fold_in(jax.random.fold_in(key, PROBE), number), matrix.shape[:-2])
        for number, matrix in enumerate(matrices)
    ]
    balances = jax.random.uniform(jax.random.fold_in(key, BALANCE)) < BALANCED
    impl = jax.random.key_impl(key)
    return on_own_matrices(
        lambda q, g, k, balances: _fitted(_balanced(q, balances), g, _probes(k, impl, g.shape), spec.factor_rate),
        list(zip(factors, matrices, keys, strict=True)),
        balances,
    )


def _keys(key: PRNGKeyArray, lead: tuple[int, ...]) -> Array:
    """Return a key for each matrix, as data (*lead, 1, words): each device draws the numbers of its own matrices."""
    return jax.random.key_data(jax.random.split(key, lead))[..., None, :]


def _probes(keys: Array, impl: Any, shape: tuple[int, ...]) -> Array:
    """Return normal numbers of a shape (…, m, n), those of each matrix from its own key."""
    own = jax.random.wrap_key_data(keys.reshape(-1, keys.shape[-1]), impl=impl)
    return jax.vmap(lambda key: jax.random.normal(key, shape[-2:]))(own).reshape(shape)


def _balanced(factors: Factors, balances: Array) -> Factors:
    """Return factors whose greatest numbers are equal, where `balances`; their product stays the same."""
    greatest = [jnp.abs(q).max((-2, -1), keepdims=True) for q in factors]
    mean = jnp.sqrt(greatest[0] * greatest[1])
    first, second = (jnp.where(balances, q * mean / each, q) for q, each in zip(factors, greatest, strict=True))
    return first, second


def _fitted(factors: Factors, g: Array, probe: Array, rate: float) -> Factors:
    """Return factors L and R after a step, from A = L G R^T and B = L^-T V R^-1 with the probe V."""
    a, b = _on_both(_times, factors, g), _on_both(_solved, factors, probe)
    # without a gradient, as of an expert that no token reaches, factors would grow without end
    seen = (g != 0).any((-2, -1), keepdims=True)
    left, right = (
        jnp.where(seen, _one_fitted(q, *both, rate), q) for q, both in zip(factors, ((a, b), (a.mT, b.mT)), strict=True)
    )
    return left, right


def _one_fitted(q: Array, a: Array, b: Array, rate: float) -> Array:
    """Return the factor of the side that is the first of `a` and `b`."""
    if _is_diagonal(q):
        of_a, of_b = (jnp.square(x).sum(-1, keepdims=True) for x in (a, b))
        return q - rate * (of_a - of_b) * q / _safe((of_a + of_b).max((-2, -1), keepdims=True))
    of_a, of_b = a @ a.mT, b @ b.mT
    return q - rate * (jnp.triu(of_a - of_b) / _safe(_norm_bound(of_a + of_b))) @ q


def _whiten(g: Array, factors: Factors) -> Array:
    """Return L^T L G R^T R."""
    return _on_both(_times_transposed, factors, _on_both(_times, factors, g))


def _on_both(function: Callable[[Array, Array], Array], factors: Factors, x: Array) -> Array:
    """Return matrices after `function(factor, matrices)` of their rows and then of their columns."""
    left, right = factors
    return function(right, function(left, x).mT).mT


def _times(q: Array, x: Array) -> Array:
    return q * x if _is_diagonal(q) else q @ x


def _times_transposed(q: Array, x: Array) -> Array:
    return q * x if _is_diagonal(q) else q.mT @ x


def _solved(q: Array, x: Array) -> Array:
    """Return Q^-T x."""
    if _is_diagonal(q):
        return x / q
    return one_by_one(partial(jax.lax.linalg.triangular_solve, left_side=True, transpose_a=True), q, x)


def _is_diagonal(q: Array) -> bool:
    return q.shape[-2] != q.shape[-1]


def _limited(direction: Array, limit: float) -> Array:
    """Return numbers that stay about as they are near 0, and beyond `limit` grow as a logarithm only."""
    if not limit:
        return direction
    x = direction / limit
    return limit * (0.1 * jnp.sign(x) * jnp.log1p(jnp.abs(x)) + 0.9 * jnp.tanh(x))


def _norm_bound(symmetric: Array) -> Array:
    """Return a lower bound of the spectral norms of symmetric matrices (…, n, n), near to them, as (…, 1, 1)."""
    greatest = _safe(jnp.abs(symmetric).max((-2, -1), keepdims=True))
    x = symmetric / greatest
    row = jnp.square(x).sum(-1, keepdims=True).argmax(-2, keepdims=True)
    along = x @ jnp.take_along_axis(x, row, -2).mT
    return greatest * _norm(x @ (along / _safe(_norm(along))))


def _norm(vectors: Array) -> Array:
    return jnp.sqrt(jnp.square(vectors).sum((-2, -1), keepdims=True))


def _safe(divisor: Array) -> Array:
    return divisor + jnp.finfo(divisor.dtype).tiny
