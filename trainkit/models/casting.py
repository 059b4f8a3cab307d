"""Casting a model to the dtype of computation; `Exact` numbers stay float32."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Exact(eqx.Module):
    """Numbers that stay float32 whatever the compute dtype: there are few of them, and much depends on each."""

    value: Float[Array, ...]


def cast(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    """Return the tree with floating-point arrays in `dtype`; other leaves, and `Exact` ones, are unchanged."""

    def convert(leaf: Any) -> Any:
        return leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(convert, tree, is_leaf=lambda node: isinstance(node, Exact))
