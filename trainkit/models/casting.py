"""What is computed in fewer bits than it is kept in, and what never is."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Exact(eqx.Module):
    """Numbers that stay float32, whatever is computed in: there are few of them, and much hangs on each."""

    value: Float[Array, ...]


def cast(tree: PyTree, dtype: jnp.dtype) -> PyTree:
    """Floating-point arrays in `dtype`, all else, and what is `Exact`, as it is."""

    def convert(leaf: Any) -> Any:
        return leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf

    return jax.tree.map(convert, tree, is_leaf=lambda node: isinstance(node, Exact))
