"""Trained arrays with products in few bits and gradients summed in float32.

A sum in bfloat16 stops growing once it is 256 times as large as its addends. The gradient of every trained array is a
sum over tokens, micro-batches and devices, so all of these sums are in float32. JAX gives a gradient the dtype of its
array; a `Weight` therefore has two arrays, and gradients go to the float32 one.

The functions here also take plain arrays, which frozen models and models used for inference consist of.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from trainkit.models.casting import cast
from trainkit.models.nf4 import Nf4
from trainkit.models.row_sums import add_rows
from trainkit.parallel.mesh import on_own_rows


class Weight(eqx.Module):
    """A trained array rounded to the compute dtype, and the float32 array that receives its gradient."""

    rounded: Float[Array, ...]
    master: Float[Array, ...]
    """Stands for the gradient: no result of the model depends on its numbers."""

    @staticmethod
    def of(array: Array | Weight) -> Weight:
        """Return a plain array as a `Weight`: its gradient is summed in float32, then converted to the
        array's dtype."""
        if isinstance(array, Weight):
            return array
        return Weight(jax.lax.stop_gradient(array), array.astype(jnp.float32))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return self.rounded.shape


def in_compute_dtype(masters: PyTree, dtype: jnp.dtype) -> PyTree:
    """Return the arrays of a model in `dtype` for computing, each as a `Weight` unless `dtype` is float32.

    Args:
        masters: the arrays to differentiate by; all floating-point ones are float32.
    """

    def pair(rounded: Array, master: Array) -> Array | Weight:
        return master if rounded.dtype == master.dtype else Weight(jax.lax.stop_gradient(rounded), master)

    return jax.tree.map(pair, cast(masters, dtype), masters)


def exact(array: Array | Weight) -> Float[Array, ...]:
    """Return the rounded numbers in float32, so that whatever is summed for their gradient is float32 too."""
    return _widen(array.rounded, array.master) if isinstance(array, Weight) else array.astype(jnp.float32)


@jax.custom_vjp
def _widen(rounded: Array, master: Array) -> Array:
    return rounded.astype(jnp.float32)


_widen.defvjp(lambda rounded, master: (_widen(rounded, master), None), lambda _, dy: (None, dy))


def add(x: Float[Array, "*n D"], bias: Float[Array, "*m D"] | Weight) -> Float[Array, "*n D"]:
    """Return x + bias in the dtype of `x`; the bias has some of the last axes of `x`."""
    return (x.astype(jnp.float32) + exact(bias)).astype(x.dtype) if isinstance(bias, Weight) else x + bias


def lookup(table: Float[Array, "V D"] | Weight, rows: Int[Array, "*n"]) -> Float[Array, "*n D"]:
    """Return these rows of the table, in its dtype; their gradient is summed in float32."""
    return _lookup(table.rounded, table.master, rows) if isinstance(table, Weight) else table[rows]


@jax.custom_vjp
def _lookup(rounded: Array, master: Array, rows: Array) -> Array:
    return rounded[rows]


def _lookup_backward(residuals: tuple[Array, Array], dy: Array) -> tuple[None, Array, None]:
    # only the shape of the table is needed
    rows, like = residuals
    if jax.default_backend() != "gpu":
        return None, jnp.zeros(like.shape, jnp.float32).at[rows].add(dy.astype(jnp.float32)), None

    def sums(rows: Array, dy: Array) -> Array:  # of each device's own rows: what is sorted would be gathered
        return add_rows(jnp.zeros(like.shape, jnp.float32), rows.reshape(-1), dy.reshape(-1, dy.shape[-1]))[None]

    return None, on_own_rows(sums, rows, dy).sum(0), None


_lookup.defvjp(lambda rounded, master, rows: (rounded[rows], (rows, master)), _lookup_backward)


def product(x: Float[Array, "*n in"], weight: Float[Array, "in out"] | Nf4 | Weight) -> Float[Array, "*n out"]:
    """Return x @ weight in the dtype of `x`; the gradient of the weight is summed in float32."""
    if isinstance(weight, Weight):
        return _product(x, weight.rounded, weight.master)
    plain: Any = weight  # `x @ packed` is defined too
    return x @ plain


@jax.custom_vjp
def _product(x: Array, rounded: Array, master: Array) -> Array:
    return x @ rounded


def _product_backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, None, Array]:
    x, rounded = residuals
    rows = tuple(range(x.ndim - 1))
    dweight = jax.lax.dot_general(x, dy, ((rows, rows), ((), ())), preferred_element_type=jnp.float32)
    return dy @ rounded.T, None, dweight


_product.defvjp(lambda x, rounded, master: (x @ rounded, (x, rounded)), _product_backward)
