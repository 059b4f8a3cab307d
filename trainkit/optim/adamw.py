"""AdamW, whose moments may be stored in fewer bits than they are computed in."""

from __future__ import annotations

from typing import Any, assert_never

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt

from trainkit.parallel.precision import (
    Blocks,
    from_blocks,
    greatest_in,
    random_bits,
    to_bfloat16,
    to_blocks,
    zero_blocks,
)
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.moments import SMALLEST_COMPRESSED, Moments


def build(spec: AdamW) -> optax.GradientTransformationExtraArgs:
    """Return the transformation of gradients into descent directions, before weight decay."""
    b1, b2 = spec.betas
    return scale_by_adam(b1=b1, b2=b2, eps=spec.eps, moments=spec.moments)


def scale_by_adam(*, b1: float, b2: float, eps: float, moments: Moments) -> optax.GradientTransformationExtraArgs:
    """Return Adam (Kingma & Ba 2015, algorithm 1), computed in float32, with moments stored as `moments` says.

    Stored moments are rounded stochastically. Rounded to the nearest, a second moment would never change: 1 - b2 of it
    is less than half a step of bfloat16. The update takes a fresh `key` at each step; float32 moments do not use it.
    """

    def init(params: PyTree) -> optax.ScaleByAdamState:
        mu = jax.tree.map(lambda p: _zeros(p, moments, signed=True), params)
        nu = jax.tree.map(lambda p: _zeros(p, moments, signed=False), params)
        return optax.ScaleByAdamState(jnp.int32(0), mu, nu)

    def update(
        grads: PyTree, state: optax.ScaleByAdamState, params: PyTree | None = None, *, key: PRNGKeyArray, **_: Any
    ) -> tuple[PyTree, optax.ScaleByAdamState]:
        count = optax.safe_increment(state.count)
        correct1, correct2 = 1 - b1**count, 1 - b2**count
        structure: Any
        leaves, structure = jax.tree.flatten(grads)
        mus, nus = structure.flatten_up_to(state.mu), structure.flatten_up_to(state.nu)
        directions = []
        # directions come from the stored moments: if they were read earlier, XLA would copy them before overwriting
        for i, g in enumerate(leaves):
            bits, most = random_bits(jax.random.fold_in(key, i), g.shape), greatest_in(g)
            mus[i] = _average(g, most, mus[i], decay=b1, bits=bits)
            nus[i] = _average(jnp.square(g), jnp.square(most), nus[i], decay=b2, bits=bits >> 16)
            directions.append(_load(mus[i]) / correct1 / (jnp.sqrt(_load(nus[i]) / correct2) + eps))
        return structure.unflatten(directions), optax.ScaleByAdamState(
            count, structure.unflatten(mus), structure.unflatten(nus)
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _zeros(parameter: Array, moments: Moments, *, signed: bool) -> Array | Blocks:
    if parameter.size < SMALLEST_COMPRESSED:
        moments = "float32"
    match moments:
        case "float32" | "bfloat16":
            return jnp.zeros(parameter.shape, moments)
        case "int8":
            return zero_blocks(parameter.shape, signed=signed)
        case _:
            assert_never(moments)


def _load(kept: Array | Blocks) -> Float[Array, ...]:
    return from_blocks(kept) if isinstance(kept, Blocks) else kept.astype(jnp.float32)


def _average(
    x: Float[Array, ...], most: Float[Array, ...], kept: Array | Blocks, *, decay: float, bits: UInt[Array, ...]
) -> Array | Blocks:
    """Return the moment after `x`, whose absolute values in each block are at most `most`."""
    moment = decay * _load(kept) + (1 - decay) * x
    if isinstance(kept, Blocks):
        bounds = decay * greatest_in(kept) + (1 - decay) * most
        return to_blocks(moment, bits, bounds, signed=kept.codes.dtype == jnp.int8)
    return to_bfloat16(moment, bits) if kept.dtype == jnp.bfloat16 else moment
