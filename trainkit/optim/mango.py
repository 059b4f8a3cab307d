"""Mango: momentum, normalized by what a parameter is for."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.optim.lapack import one_by_one
from trainkit.optim.moments import store_averages
from trainkit.optim.muon import laprop
from trainkit.optim.orthogonal import is_tall, orthogonal
from trainkit.parallel.mesh import on_own_matrices
from trainkit.recipe.optimizers.mango import MangoOfRole, kind_for


def build(spec: MangoOfRole, *, stacked: bool) -> optax.GradientTransformation:
    """Return gradients of the parameters of one role → normalized directions."""
    momentum = optax.trace(spec.momentum, nesterov=spec.nesterov)
    if spec.preconditioner == "adam":
        momentum = optax.scale_by_adam(spec.momentum, spec.preconditioner_decay, spec.eps, nesterov=spec.nesterov)
    elif spec.preconditioner == "laprop":
        momentum = optax.chain(laprop(spec.preconditioner_decay, spec.eps), momentum)
    return optax.chain(
        store_averages(momentum, spec.moments, {"mu": True, "nu": False, "trace": True}),
        optax.stateless(lambda directions, params: _normalized(spec, directions, stacked=stacked)),
        optax.stateless(lambda directions, params: _by_weights(spec, directions, params, stacked=stacked)),
    )


def _normalized(spec: MangoOfRole, directions: PyTree, *, stacked: bool) -> PyTree:
    structure: Any
    leaves, structure = jax.tree.flatten(directions)
    shapes = [leaf.shape for leaf in leaves]
    heads = spec.head_size if spec.role.startswith("attention") else None
    if heads is not None:
        leaves = [_split(leaf, heads, matrix=spec.role == "attention") for leaf in leaves]
    kind = kind_for(spec.normalize, spec.role)
    if kind == "newton-schulz":
        leaves = _orthogonalised(leaves, spec)
    elif kind == "sign":
        leaves = [jnp.sign(leaf) for leaf in leaves]
    elif kind != "none":
        # the parts of heads are one axis more that holds separate arrays
        axes = partial(_axes, kind, lead=stacked + (heads is not None))
        leaves = [leaf / (_norm(leaf, axes(leaf.ndim)) + spec.eps) for leaf in leaves]
    if heads is not None:
        leaves = [jnp.moveaxis(leaf, -3, -2) if spec.role == "attention" else leaf for leaf in leaves]
    return structure.unflatten([leaf.reshape(shape) for leaf, shape in zip(leaves, shapes, strict=True)])


def _split(x: Array, size: int, *, matrix: bool) -> Array:
    """Return matrices (…, heads, inputs, size), or vectors (…, heads, size), of what has all heads' outputs last."""
    parts = x.reshape(*x.shape[:-1], -1, size)
    return jnp.moveaxis(parts, -2, -3) if matrix else parts


def _orthogonalised(leaves: list[Array], spec: MangoOfRole) -> list[Array]:
    wide = [(leaf.mT if is_tall(leaf) else leaf,) for leaf in leaves]
    made = on_own_matrices(lambda x: orthogonal(x, "newton-schulz", spec.iterations), wide)
    outputs_first = spec.role in ("embeddings", "head")

    def scaled(x: Array, like: Array) -> Array:
        inputs, outputs = like.shape[-2:][:: -1 if outputs_first else 1]
        return max(1.0, outputs / inputs) ** 0.5 * (x.mT if is_tall(like) else x)

    return list(map(scaled, made, leaves))


def _by_weights(spec: MangoOfRole, directions: PyTree, params: PyTree, *, stacked: bool) -> PyTree:
    kind = kind_for(spec.weights, spec.role)
    if kind == "none":
        return directions
    structure: Any
    leaves, structure = jax.tree.flatten(directions)
    weights = [leaf.astype(jnp.float32) for leaf in structure.flatten_up_to(params)]
    if kind == "operator":
        norms = on_own_matrices(_operator_norm, [(w,) for w in weights])
    else:
        norms = [_norm(w, _axes(kind, w.ndim, lead=stacked)) for w in weights]
    limit = partial(jnp.clip, min=spec.weights.least, max=spec.weights.greatest)
    return structure.unflatten([x * limit(n**spec.weights.power) for x, n in zip(leaves, norms, strict=True)])


def _operator_norm(matrices: Array) -> Array:
    return one_by_one(lambda w: jnp.linalg.norm(w, 2, keepdims=True), matrices)


def _axes(kind: str, ndim: int, *, lead: int) -> tuple[int, ...]:
    """Return the axes of a norm of `kind` of arrays after `lead` axes of separate ones; experts are separate too."""
    if kind in ("rows", "columns"):
        return (-1,) if kind == "rows" else (-2,)
    return tuple(range(-min(ndim - lead, 2), 0))


def _norm(x: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.square(x).sum(axes, keepdims=True))
