"""SOAP: Adam in the eigenbasis of Shampoo's preconditioners."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.moments import stored
from trainkit.recipe.optimizers.matrix import Soap

Sides = list[Array | None]
"""Of a matrix (…, inputs, outputs): an array of each side, (…, side, side); None of a side that is too long."""


class SoapState(NamedTuple):
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

    def one(step: Array, g: Array, m: Array, v: Array, averages: Sides, bases: Sides) -> tuple[Any, ...]:
        rotated = _rotate(g, bases)
        m_new, v_new = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * rotated**2
        counted = jnp.maximum(step, 1)
        scale = jnp.sqrt(1 - b2**counted) / (1 - b1**counted)
        direction = scale * _rotate_back(_rotate(m_new, bases) / (jnp.sqrt(v_new) + spec.eps), bases)
        # the first gradient only makes the basis
        m, v, direction = (jnp.where(step > 0, new, old) for new, old in ((m_new, m), (v_new, v), (direction, 0)))
        averages = [
            a if a is None else decay * a + (1 - decay) * gram for a, gram in zip(averages, _grams(g), strict=True)
        ]
        branch = jnp.where(step == 0, 1, jnp.where(step % spec.every == 0, 2, 0))
        bases, v = jax.lax.switch(branch, (lambda a, b, v: (b, v), _first_bases, _next_bases), averages, bases, v)
        return direction, m, v, averages, bases

    def update(grads: PyTree, state: SoapState, params: PyTree | None = None) -> tuple[PyTree, SoapState]:
        structure: Any
        leaves, structure = jax.tree.flatten(grads)
        parts = (structure.flatten_up_to(part) for part in state[1:])
        results = [one(state.step, *each) for each in zip(leaves, *parts, strict=True)]
        directions, *after = (structure.unflatten(part) for part in zip(*results, strict=True))
        return directions, SoapState(state.step + 1, *after)

    return stored(optax.GradientTransformation(init, update), "float32", {})


def _sides(shape: tuple[int, ...], longest: int) -> Sides:
    return [jnp.zeros((*shape[:-2], side, side), jnp.float32) if side <= longest else None for side in shape[-2:]]


def _grams(g: Array) -> tuple[Array, Array]:
    return jnp.einsum("...mn,...kn->...mk", g, g), jnp.einsum("...mn,...mk->...nk", g, g)


def _rotate(x: Array, bases: Sides) -> Array:
    left, right = bases
    x = x if left is None else jnp.einsum("...km,...kn->...mn", left, x)
    return x if right is None else x @ right


def _rotate_back(x: Array, bases: Sides) -> Array:
    left, right = bases
    x = x if left is None else left @ x
    return x if right is None else jnp.einsum("...mk,...nk->...mn", x, right)


def _first_bases(averages: Sides, bases: Sides, v: Array) -> tuple[Sides, Array]:
    """Return the eigenvectors, those of the greatest eigenvalues first."""
    return [a if a is None else jnp.linalg.eigh(a)[1][..., ::-1] for a in averages], v


def _next_bases(averages: Sides, bases: Sides, v: Array) -> tuple[Sides, Array]:
    """Return the bases after one power iteration, and the squares in the order of their columns."""
    after: Sides = []
    for average, basis, axis in zip(averages, bases, (-2, -1), strict=True):
        if average is None or basis is None:
            after.append(None)
            continue
        estimates = jnp.einsum("...ki,...kl,...li->...i", basis, average, basis)
        order = jnp.argsort(-estimates, axis=-1)
        v = jnp.take_along_axis(v, order[..., None] if axis == -2 else order[..., None, :], axis)
        sorted_basis = jnp.take_along_axis(basis, order[..., None, :], -1)
        after.append(jnp.linalg.qr(average @ sorted_basis)[0])
    return after, v
