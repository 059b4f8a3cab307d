"""Shampoo: gradients preconditioned on both sides, in blocks, with the length of another rule's steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.moments import store_averages
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.matrix import Shampoo, blocks_of

#: Added to squares below the root of Adam's steps, by which directions are grafted.
TINY = 1e-16
#: An iteration ends when its product is so near the identity, or after so many passes.
SMALL_ERROR, MOST_ITERATIONS = 1e-6, 100


class ShampooState(NamedTuple):
    """Averages of directions and of products of gradients, and the roots made from them."""

    step: Array
    mu: PyTree
    """The average of the directions."""
    nu: PyTree | None
    """The average of the squares of the gradients, if directions are grafted on Adam's."""
    averages: PyTree
    """The averages of gradient x gradient^T of both sides, for each block: (…, rows, columns, side, side)."""
    roots: PyTree
    """Their inverse fourth roots."""


def build(spec: Shampoo) -> optax.GradientTransformationExtraArgs:
    """Return Shampoo of matrices (…, inputs, outputs), whose leading axes hold separate matrices.

    Roots come from a coupled Newton iteration, which is stable in float32 (Anil et al. 2021, section 3.2).
    """
    b1, b2 = spec.betas

    def init(params: PyTree) -> ShampooState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        sides = jax.tree.map(lambda p: [jnp.zeros_like(gram) for gram in _grams(_blocks(p, spec.block))], params)
        identities = jax.tree.map(lambda a: jnp.broadcast_to(jnp.eye(a.shape[-1]), a.shape), sides)
        return ShampooState(jnp.int32(0), zeros, zeros if spec.graft == "adam" else None, sides, identities)

    def averaged(blocks: Array, averages: list[Array]) -> list[Array]:
        return [b2 * a + (1 - b2) * gram for a, gram in zip(averages, _grams(blocks), strict=True)]

    def grafted(g: Array, v: Array | None, direction: Array, t: Array) -> Array:
        """Return the direction, as long as the step of the other rule."""
        if spec.graft == "none":
            return direction
        target = g if v is None else g / (jnp.sqrt(v / (1 - b2**t) + TINY))
        return direction * _norm(target) / jnp.maximum(_norm(direction), 1e-30)

    def new_roots(averages: list[list[Array]], roots: list[list[Array]], t: Array) -> list[list[Array]]:
        pairs = [
            (average / (1 - b2**t), before)
            for both in zip(averages, roots, strict=True)
            for average, before in zip(*both, strict=True)
        ]
        found = on_own_matrices(lambda average, before: _root(average, before, spec.eps), pairs)
        return [found[at : at + 2] for at in range(0, len(found), 2)]

    def update(grads: PyTree, state: ShampooState, params: PyTree | None = None) -> tuple[PyTree, ShampooState]:
        t = state.step + 1
        structure: Any
        g, structure = jax.tree.flatten(grads)
        m, averages, roots = (structure.flatten_up_to(part) for part in (state.mu, state.averages, state.roots))
        v: list[Any] = [None] * len(g)
        if state.nu is not None:
            v = [b2 * s + (1 - b2) * x * x for s, x in zip(structure.flatten_up_to(state.nu), g, strict=True)]
        blocks = [_blocks(each, spec.block) for each in g]
        averages = on_own_matrices(averaged, list(zip(blocks, averages, strict=True)))
        roots = jax.lax.cond(
            state.step % spec.every == 0, lambda a, r: new_roots(a, r, t), lambda _, r: r, averages, roots
        )
        products = on_own_matrices(lambda x, sides: sides[0] @ x @ sides[1], list(zip(blocks, roots, strict=True)))
        directions = [
            grafted(each, s, _whole(product, each.shape), t) for each, s, product in zip(g, v, products, strict=True)
        ]
        m = [b1 * before + (1 - b1) * d for before, d in zip(m, directions, strict=True)]
        found, mu, averages, roots = (
            structure.unflatten(part) for part in ([x / (1 - b1**t) for x in m], m, averages, roots)
        )
        nu = None if state.nu is None else structure.unflatten(v)
        return found, ShampooState(t, mu, nu, averages, roots)

    return store_averages(optax.GradientTransformation(init, update), spec.moments, {"mu": True, "nu": False})


def _blocks(x: Array, longest: int) -> Array:
    """Return matrices (…, m, n) as blocks (…, rows, columns, a, b), the last ones filled with zeros."""
    (rows, a), (columns, b) = (blocks_of(side, longest) for side in x.shape[-2:])
    lead = x.shape[:-2]
    padding = [(0, 0)] * len(lead) + [(0, rows * a - x.shape[-2]), (0, columns * b - x.shape[-1])]
    return jnp.pad(x, padding).reshape(*lead, rows, a, columns, b).swapaxes(-3, -2)


def _whole(blocks: Array, shape: tuple[int, ...]) -> Array:
    """Return the matrices of this shape that were divided into blocks."""
    rows, columns, a, b = blocks.shape[-4:]
    joined = blocks.swapaxes(-3, -2).reshape(*shape[:-2], rows * a, columns * b)
    return joined[..., : shape[-2], : shape[-1]]


def _grams(x: Array) -> tuple[Array, Array]:
    return jnp.einsum("...mn,...kn->...mk", x, x), jnp.einsum("...mn,...mk->...nk", x, x)


def _root(average: Array, before: Array, eps: float) -> Array:
    """Return the inverse fourth root of each matrix (…, a, a), or the one `before` where none is found."""
    found = jax.vmap(lambda a: inverse_root(a, eps))(average.reshape(-1, *average.shape[-2:])).reshape(average.shape)
    return jnp.where(jnp.isfinite(found).all((-2, -1), keepdims=True), found, before)


def inverse_root(matrix: Array, eps: float, *, p: int = 4) -> Array:
    """Return (matrix + eps |matrix| I)^(-1/p) of a symmetric matrix without negative eigenvalues; |.| is Frobenius's.

    It is the coupled Newton iteration of Higham 2008, equation 7.18, which needs products of matrices alone. Each pass
    makes the smallest eigenvalue about (1 + 1/p)^p times as large, until all are 1, and then squares the error.
    """
    identity = jnp.eye(matrix.shape[-1])
    norm = jnp.linalg.norm(matrix)
    regular = matrix + eps * norm * identity
    scale = (1 + p) / (2 * (1 + eps) * norm)

    def unfinished(carry: Any) -> Array:
        count, _, _, _, error, last = carry
        return (count < MOST_ITERATIONS) & (error > SMALL_ERROR) & (error < last)

    def improved(carry: Any) -> Any:
        count, product, root, _, error, _ = carry
        factor = ((1 + p) * identity - product) / p
        after = jnp.matmul(jnp.linalg.matrix_power(factor, p), product, precision="highest")
        return (
            count + 1,
            after,
            jnp.matmul(root, factor, precision="highest"),
            root,
            jnp.abs(after - identity).max(),
            # while small eigenvalues grow the error stays near 1
            jnp.where(error > 0.5, jnp.inf, error),
        )

    first: tuple[Any, ...]
    first = (jnp.int32(0), scale * regular, scale ** (1 / p) * identity, identity, jnp.float32(1), jnp.float32(jnp.inf))
    _, _, root, previous, error, last = jax.lax.while_loop(unfinished, improved, first)
    return jnp.where(error < last, root, previous)


def _norm(x: Array) -> Array:
    return jnp.sqrt(jnp.square(x).sum((-2, -1), keepdims=True))
