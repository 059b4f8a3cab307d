"""Norms of matrices and the curvature of the loss, by power iteration, for statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from trainkit.models import leaf_names
from trainkit.recipe.optimizers.parameters import is_stacked
from trainkit.train.leafwise import Leaves, inner, ratio, total

#: Products with a matrix and its transpose for an operator norm.
ITERATIONS = 30
#: Products with the Hessian for its top eigenvalue, and random vectors for its trace. A product takes two gradients.
HESSIAN_ITERATIONS, HESSIAN_SAMPLES = 10, 4
#: The distance, as a share of the parameters' norm, to the two places whose gradients are compared.
RADIUS = 1e-3


def only_matrices(tree: PyTree) -> PyTree:
    """Return the tree with None in place of all leaves but matrices and stacks of them, one for each layer."""
    return jax.tree.map(lambda name, x: x if x.ndim == 2 + is_stacked(name) else None, leaf_names(tree), tree)


def operator_norms(tree: PyTree, key: PRNGKeyArray) -> Leaves:
    """Return the largest singular value of each matrix, from below, by power iteration from a random vector."""
    names, found = leaf_names(only_matrices(tree)), {}
    pairs = zip(jax.tree.leaves(names), jax.tree.leaves(only_matrices(tree)), strict=True)
    for number, (name, matrix) in enumerate(pairs):
        found[name] = _operator_norm(matrix.astype(jnp.float32), jax.random.fold_in(key, number)).reshape(-1)
    return found


def _operator_norm(matrix: Float[Array, "*L m n"], key: PRNGKeyArray) -> Float[Array, "*L"]:
    def image(vector: Array) -> Array:
        return jnp.einsum("...mn,...n->...m", matrix, vector, precision="highest")

    def iterate(_: Any, vector: Array) -> Array:
        back = jnp.einsum("...mn,...m->...n", matrix, image(vector), precision="highest")
        return ratio(back, jnp.linalg.norm(back, axis=-1, keepdims=True))

    start = jax.random.normal(key, (*matrix.shape[:-2], matrix.shape[-1]))
    return jnp.linalg.norm(image(jax.lax.fori_loop(0, ITERATIONS, iterate, start)), axis=-1)


def vector_norms(params: PyTree) -> dict[str, Leaves]:
    """Return the least, mean and greatest norm of the rows and columns of matrices outside the layers, by path.

    These are embeddings and the head.
    """
    matrices = only_matrices(params)
    names = jax.tree.leaves(leaf_names(matrices))
    found: dict[str, Leaves] = {}
    for name, matrix in zip(names, jax.tree.leaves(matrices), strict=True):
        if is_stacked(name):
            continue
        for part, axis in (("row_norm", 1), ("column_norm", 0)):
            norms = jnp.linalg.norm(matrix.astype(jnp.float32), axis=axis)
            for kind, value in (("min", norms.min()), ("mean", norms.mean()), ("max", norms.max())):
                found.setdefault(f"parameters/{part}/{kind}", {})[name] = value.reshape(1)
    return found


def hessian(
    gradient: Callable[[PyTree], PyTree], params: PyTree, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the Hessian's eigenvalue of the largest magnitude and its trace (Hutchinson 1989).

    Products with the Hessian come from two gradients along a vector, since the gradients of attention's kernels have no
    derivative of their own.
    """
    params = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    radius = RADIUS * jnp.sqrt(total(inner(params, params)))

    def product(vector: PyTree) -> PyTree:
        """Return the Hessian times a vector of length 1."""
        at = jax.lax.map(
            lambda distance: gradient(jax.tree.map(lambda p, v: p + distance * v, params, vector)),
            jnp.stack([radius, -radius]),
        )
        return jax.tree.map(lambda g: (g[0] - g[1]) / (2 * radius), at)

    def iterate(_: Any, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
        vector, _ = carry
        image = product(vector)
        return _unit(image)[0], total(inner(vector, image))

    def sample(number: Array) -> Array:
        signs, length = _unit(_random(jax.random.rademacher, params, jax.random.fold_in(key, number)))
        return length**2 * total(inner(signs, product(signs)))

    start, _ = _unit(_random(jax.random.normal, params, key))
    _, top = jax.lax.fori_loop(0, HESSIAN_ITERATIONS, iterate, (start, jnp.float32(0)))
    return top, jax.lax.map(sample, jnp.arange(HESSIAN_SAMPLES)).mean()


def _random(draw: Callable[..., Array], like: PyTree, key: PRNGKeyArray) -> PyTree:
    structure: Any
    leaves, structure = jax.tree.flatten(like)
    keys = [jax.random.fold_in(key, 100 + number) for number in range(len(leaves))]
    return structure.unflatten([draw(k, leaf.shape, jnp.float32) for k, leaf in zip(keys, leaves, strict=True)])


def _unit(vector: PyTree) -> tuple[PyTree, Float[Array, ""]]:
    """Return the vector divided by its length, and its length."""
    length = jnp.sqrt(total(inner(vector, vector)))
    return jax.tree.map(lambda v: ratio(v, length), vector), length
