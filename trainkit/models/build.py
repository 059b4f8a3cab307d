"""Builds a model from its spec, and names and scales its leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from trainkit.parallel.devices import AttentionName
from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.sections.model import Model
from trainkit.recipe.spec import implementation_of


class BuildArguments(TypedDict):
    """What the `build` of every family is called with, beside the spec."""

    vocab_size: int
    sequence_length: int
    implementation: AttentionName
    """Of attention."""
    remat: Remat
    fp8: bool
    key: PRNGKeyArray


def build(
    model: Model,
    *,
    vocab_size: int,
    sequence_length: int,
    implementation: AttentionName,
    remat: Remat = "none",
    fp8: bool = False,
    key: PRNGKeyArray,
) -> Any:
    """Return a freshly initialised model, in float32: an Equinox module of the kind that its spec names.

    With `fp8`, the products of its linear layers are made of 8-bit operands: see `models/fp8.py`.
    """
    given = BuildArguments(
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        implementation=implementation,
        remat=remat,
        fp8=fp8,
        key=key,
    )
    return implementation_of(model).build(model, **given)


def leaf_names(tree: PyTree) -> PyTree[str]:
    """Return the tree with every leaf replaced by its path, such as `blocks.attention.qkv.weight`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="."), tree
    )


def scale(model: PyTree, factor: Callable[[str, tuple[int, ...]], float]) -> Any:
    """Return a model with each floating-point array multiplied by what `factor` returns for its path and shape."""

    def scaled(name: str, leaf: Any) -> Any:
        is_weight = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return leaf * factor(name, leaf.shape) if is_weight else leaf

    return jax.tree.map(scaled, leaf_names(model), model)
