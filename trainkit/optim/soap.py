"""SOAP: Adam in the eigenbasis of Shampoo's preconditioners."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.lapack import one_by_one
from trainkit.optim.moments import store_averages
from trainkit.optim.orthogonal import symmetric
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.matrix import Soap

Sides = list[Array | None]
"""Of a matrix (…, inputs, outputs): an array of each side, (…, side, side); None of a side that is too long."""


class SoapState(NamedTuple):
    """Averages of the gradients and, in the eigenbasis of Shampoo's averages, of their squares."""

    step: Array
    mu: PyTree
    """The average of the gradients, as they are."""
    nu: PyTree
    """The average of the squares of the gradients in the eigenbasis."""
    averages: PyTree
    """The averages of gradient x gradient^T: for each parameter, of both sides."""
    bases: PyTree
    """Their eigenvectors, as columns."""


def build(spec: Soap) -> optax.GradientTransformationExtraArgs:
    """Return SOAP of matrices (…, inputs, outputs), whose leading axes hold separate matrices.

    It is the published algorithm (Vyas et al. 2024, algorithms 3 and 4). The basis is updated after the step, by one
    power iteration and a QR decomposition, so that no gradient is in the basis that it is divided in.
    """
    b1, b2 = spec.betas
    decay = b2 if spec.preconditioner_decay is None else spec.preconditioner_decay

    def init(params: PyTree) -> SoapState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        sides = jax.tree.map(lambda p: _sides(p.shape, spec.longest_side), params)
        return SoapState(jnp.int32(0), zeros, zeros, sides, sides)

    def preconditioned(g: Array, m: Array, v: Array, averages: Sides, bases: Sides, scale: Array) -> tuple[Any, ...]:
        """Return the direction, the average of the squares, and the averages of gradient x gradient^T."""
        v = b2 * v + (1 - b2) * _rotate(g, bases) ** 2
        direction = scale * _rotate_back(_rotate(m, bases) / (jnp.sqrt(v) + spec.eps), bases)
        averages = [
            a if a is None else decay * a + (1 - decay) * gram for a, gram in zip(averages, _grams(g), strict=True)
        ]
        return direction, v, averages

    def update(grads: PyTree, state: SoapState, params: PyTree | None = None) -> tuple[PyTree, SoapState]:
        step = state.step
        counted = jnp.maximum(step, 1)
        scale = jnp.sqrt(1 - b2**counted) / (1 - b1**counted)
        structure: Any
        g, structure = jax.tree.flatten(grads)
        m, v, averages, bases = (structure.flatten_up_to(part) for part in state[1:])
        m_new = [b1 * before + (1 - b1) * each for before, each in zip(m, g, strict=True)]
        parts = on_own_matrices(preconditioned, list(zip(g, m_new, v, averages, bases, strict=True)), scale)
        directions, v_new, averages = (list(part) for part in zip(*parts, strict=True))
        # the first gradient only makes the basis
        directions = [jnp.where(step > 0, each, 0) for each in directions]
        m, v = (_after_first(step, *both) for both in ((m_new, m), (v_new, v)))
        branch = jnp.where(step == 0, 1, jnp.where(step % spec.every == 0, 2, 0))
        bases, v = jax.lax.switch(branch, (lambda a, b, v: (b, v), _first_bases, _next_bases), averages, bases, v)
        after = (structure.unflatten(part) for part in (m, v, averages, bases))
        return structure.unflatten(directions), SoapState(step + 1, *after)

    return store_averages(optax.GradientTransformation(init, update), "float32", {})


def _sides(shape: tuple[int, ...], longest: int) -> Sides:
    return [jnp.zeros((*shape[:-2], side, side), jnp.float32) if side <= longest else None for side in shape[-2:]]


def _grams(g: Array) -> tuple[Array, Array]:
    # halving the work of a product pays only where it is more than the copying
    left, right = (symmetric(x, x) if x.shape[-2] <= x.shape[-1] else x @ x.mT for x in (g, g.mT))
    return left, right


def _rotate(x: Array, bases: Sides) -> Array:
    left, right = bases
    x = x if left is None else jnp.einsum("...km,...kn->...mn", left, x)
    return x if right is None else x @ right


def _rotate_back(x: Array, bases: Sides) -> Array:
    left, right = bases
    x = x if left is None else left @ x
    return x if right is None else jnp.einsum("...mk,...nk->...mn", x, right)


def _after_first(step: Array, new: list[Array], old: list[Array]) -> list[Array]:
    return [jnp.where(step > 0, *both) for both in zip(new, old, strict=True)]


def _first_bases(averages: list[Sides], bases: list[Sides], v: list[Array]) -> tuple[list[Sides], list[Array]]:
    """Return the eigenvectors, those of the greatest eigenvalues first."""
    used = [(a,) for sides in averages for a in sides if a is not None]
    found = iter(on_own_matrices(_eigenvectors, used))
    return [[a if a is None else next(found) for a in sides] for sides in averages], v


def _eigenvectors(average: Array) -> Array:
    return one_by_one(lambda a: jnp.linalg.eigh(a)[1][:, ::-1], average)


def _next_bases(averages: list[Sides], bases: list[Sides], v: list[Array]) -> tuple[list[Sides], list[Array]]:
    """Return the bases after one power iteration, and the squares in the order of their columns."""
    pairs = [both for sides in zip(averages, bases, strict=True) for both in zip(*sides, strict=True)]
    found = iter(on_own_matrices(_power_iteration, [both for both in pairs if both[0] is not None]))
    after: list[Sides] = []
    for number, sides in enumerate(averages):
        after.append([])
        for average, axis in zip(sides, (-2, -1), strict=True):
            basis = None
            if average is not None:
                basis, order = next(found)
                order = order[..., None] if axis == -2 else order[..., None, :]
                v[number] = jnp.take_along_axis(v[number], order, axis)
            after[-1].append(basis)
    return after, v


def _power_iteration(average: Array, basis: Array) -> tuple[Array, Array]:
    """Return the next eigenvectors, and the old ones' order by eigenvalue."""
    product = average @ basis
    order = jnp.argsort(-(basis * product).sum(-2), axis=-1)
    return one_by_one(lambda x: jnp.linalg.qr(x)[0], jnp.take_along_axis(product, order[..., None, :], -1)), order
