"""Averages of any optimizer, stored in fewer bits than they are computed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.parallel.precision import Blocks, from_blocks, greatest_in, random_bits, to_bfloat16, to_blocks
from trainkit.recipe.optimizers.moments import SMALLEST_COMPRESSED, Moments


def store_averages(
    inner: optax.GradientTransformation, moments: Moments, signed: Mapping[str, bool]
) -> optax.GradientTransformationExtraArgs:
    """Return `inner` with a state in float32, but for averages, which are stored as `moments` says.

    They are rounded stochastically after each update; float32 is not rounded. `inner` sees parameters in float32.

    Args:
        signed: the fields of the states of `inner` that hold averages, and whether they may be negative.
    """
    extended = optax.with_extra_args_support(inner)

    def init(params: PyTree) -> Any:
        return _pack(extended.init(_in_float32(params)), moments, signed, jax.random.key(0))

    def update(
        grads: PyTree, state: Any, params: PyTree | None = None, *, key: PRNGKeyArray, **extras: Any
    ) -> tuple[PyTree, Any]:
        full = jax.tree.map(_load, state, is_leaf=_is_blocks)
        directions, after = extended.update(grads, full, _in_float32(params), key=key, **extras)
        return directions, _pack(after, moments, signed, key)

    return optax.GradientTransformationExtraArgs(init, update)


def _in_float32(params: PyTree | None) -> PyTree | None:
    return jax.tree.map(lambda p: p.astype(jnp.float32), params)


def _is_blocks(node: Any) -> bool:
    return isinstance(node, Blocks)


def _load(leaf: Any) -> Any:
    if isinstance(leaf, Blocks):
        return from_blocks(leaf)
    return leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf


def _pack(state: Any, moments: Moments, signed: Mapping[str, bool], key: PRNGKeyArray) -> Any:
    if moments == "float32":
        return state
    structure: Any
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    packed = []
    for number, (path, leaf) in enumerate(leaves):
        field = next((step.name for step in path if getattr(step, "name", None) in signed), None)
        if field is None or leaf.size < SMALLEST_COMPRESSED:
            packed.append(leaf)
        else:
            bits = random_bits(jax.random.fold_in(key, number), leaf.shape)
            packed.append(_store(leaf.astype(jnp.float32), moments, bits, signed=signed[field]))
    return structure.unflatten(packed)


def _store(average: Array, moments: Moments, bits: Array, *, signed: bool) -> Array | Blocks:
    if moments == "bfloat16":
        return to_bfloat16(average, bits)
    return to_blocks(average, bits, greatest_in(average), signed=signed)
