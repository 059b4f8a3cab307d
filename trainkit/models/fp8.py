"""Matrix products of 8-bit floating-point operands (Micikevicius et al. 2022)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from trainkit.models.master_weights import Weight

#: More precision for operands of the forward pass, more range for gradients (their section 3).
FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


class Scaled(NamedTuple):
    """An array stored as `values * scale`, as exactly as the dtype of `values` allows."""

    values: Array
    scale: Float[Array, ""]


def scale_to(x: Float[Array, ...], dtype: type) -> Scaled:
    """Return `x` in `dtype`, scaled so that its largest number is that of `dtype` ("current" scaling)."""
    largest = jnp.abs(x).max().astype(jnp.float32)
    limit = jnp.finfo(dtype).max.astype(jnp.float32)
    scale = jnp.where(largest > 0, largest, limit) / limit
    return Scaled(jnp.clip(x.astype(jnp.float32) / scale, -limit, limit).astype(dtype), scale)


def fp8_product(x: Float[Array, "*n in"], weight: Float[Array, "in out"] | Weight) -> Float[Array, "*n out"]:
    """Return x @ weight with operands in e4m3 and sums in float32; the incoming gradient is rounded to e5m2."""
    weight = Weight.of(weight)
    return _fp8_product(x, weight.rounded, weight.master)


@jax.custom_vjp
def _fp8_product(x: Array, rounded: Array, master: Array) -> Array:
    return _forward(x, rounded, master)[0]


def _forward(x: Array, rounded: Array, master: Array) -> tuple[Array, tuple[Scaled, Scaled]]:
    left, right = scale_to(x, FORWARD), scale_to(rounded, FORWARD)
    return _product(left, right, (x.ndim - 1,), (0,)).astype(x.dtype), (left, right)


def _backward(residuals: tuple[Scaled, Scaled], dy: Array) -> tuple[Array, None, Array]:
    x, weight = residuals
    incoming = scale_to(dy, BACKWARD)
    rows = tuple(range(dy.ndim - 1))
    dx = _product(incoming, weight, (dy.ndim - 1,), (1,))
    dweight = _product(x, incoming, rows, rows)
    return dx.astype(dy.dtype), None, dweight


_fp8_product.defvjp(_forward, _backward)


def _product(left: Scaled, right: Scaled, over_left: tuple[int, ...], over_right: tuple[int, ...]) -> Array:
    """Operands stay in 8 bit up to the product, so that XLA hands them to the units for it, and scales its result."""
    over = ((over_left, over_right), ((), ()))
    product = jax.lax.dot_general(left.values, right.values, over, preferred_element_type=jnp.float32)
    return product * (left.scale * right.scale)
