"""Gradients divided by roots of sums, or averages, of their squares."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jaxtyping import PyTree

from trainkit.optim.moments import store_averages
from trainkit.optim.scheduled import is_zero
from trainkit.recipe.optimizers.first_order import Adafactor, Adagrad, RmsProp


def build_rmsprop(spec: RmsProp) -> optax.GradientTransformation:
    """Return gradients divided by the root of their average square, or by their deviation, as optax has it."""
    scale = optax.scale_by_stddev if spec.centered else optax.scale_by_rms
    transforms = [scale(spec.decay, spec.eps, eps_in_sqrt=False)]
    if not is_zero(spec.momentum):
        transforms.append(optax.trace(spec.momentum))
    return store_averages(optax.chain(*transforms), spec.moments, {"mu": True, "nu": False, "trace": True})


def build_adagrad(spec: Adagrad) -> optax.GradientTransformation:
    """Return gradients divided by the root of the sum of their squares, as optax has it."""
    return store_averages(optax.scale_by_rss(spec.initial, spec.eps), "float32", {})


def build_adafactor(spec: Adafactor, *, stacked: bool) -> optax.GradientTransformation:
    """Return Adafactor without momentum, as optax has it; each layer of a stack is a matrix of its own."""
    transforms = [
        optax.scale_by_factored_rms(
            decay_rate=spec.decay_rate, min_dim_size_to_factor=spec.least_factored, epsilon=spec.eps
        ),
        optax.clip_by_block_rms(spec.clip),
    ]
    if spec.relative:
        transforms.append(optax.scale_by_param_block_rms())
    rule = optax.chain(*transforms)
    return store_averages(_each_layer(rule) if stacked else rule, "float32", {})


def _each_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return `inner` applied to each layer of stacked parameters, one parameter after the other."""

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(jax.vmap(inner.init), params)

    def update(grads: PyTree, state: PyTree, params: PyTree | None = None) -> tuple[PyTree, PyTree]:
        structure: Any
        leaves, structure = jax.tree.flatten(grads)
        results = [
            jax.vmap(inner.update)(*each)
            for each in zip(leaves, structure.flatten_up_to(state), structure.flatten_up_to(params), strict=True)
        ]
        directions, after = zip(*results, strict=True)
        return structure.unflatten(directions), structure.unflatten(after)

    return optax.GradientTransformation(init, update)
