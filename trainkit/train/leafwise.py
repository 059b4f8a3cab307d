"""Sums over the leaves of parameters, gradients and updates: of each parameter and layer, and of all together."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from trainkit.models import leaf_names
from trainkit.recipe.optimizers.parameters import is_stacked

#: An array (L,) of each parameter by its name: a value for each layer of a stack, or (1,) outside the layers.
Leaves = dict[str, Float[Array, " L"]]


def reduce_leaves(tree: PyTree, reduce: Callable[..., Array]) -> Leaves:
    """Return each leaf reduced to (L,), or (1,) outside the layers, by name."""
    names = jax.tree.leaves(leaf_names(tree))
    return {
        name: reduce(leaf, axis=tuple(range(is_stacked(name), leaf.ndim))).reshape(-1)
        for name, leaf in zip(names, jax.tree.leaves(tree), strict=True)
    }


def inner(left: PyTree, right: PyTree) -> Leaves:
    """Return the inner product of each leaf, in float32."""
    return reduce_leaves(jax.tree.map(lambda a, b: a.astype(jnp.float32) * b.astype(jnp.float32), left, right), jnp.sum)


def total(leaves: Leaves) -> Float[Array, ""]:
    """Return the sum over all leaves and layers."""
    return jnp.stack([leaf.sum() for leaf in leaves.values()]).sum()


def roots(squares: Leaves) -> Leaves:
    """Return the root of each value."""
    return {name: jnp.sqrt(square) for name, square in squares.items()}


def ratio(value: Array, by: Array) -> Array:
    """Return the quotient, or 0 where the divisor is 0."""
    return jnp.where(by != 0, value / jnp.where(by != 0, by, 1), 0)


def cosine(left: PyTree, right: PyTree) -> tuple[Float[Array, ""], Leaves]:
    """Return the cosine of the angle between two trees, and those between their leaves."""
    products, lefts, rights = inner(left, right), inner(left, left), inner(right, right)
    whole = ratio(total(products), jnp.sqrt(total(lefts)) * jnp.sqrt(total(rights)))
    by_leaf = {name: ratio(p, jnp.sqrt(lefts[name]) * jnp.sqrt(rights[name])) for name, p in products.items()}
    return whole, by_leaf


def difference(left: Array, right: Array) -> Array:
    """Return the difference in float32."""
    return left.astype(jnp.float32) - right.astype(jnp.float32)
