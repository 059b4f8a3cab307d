"""Sums of products of float32 numbers without any rounding, so that their order changes nothing.

A sum is a fixed-point number that is wide enough for every product (Kulisch & Miranker 1981), in digits of 8 bits that
are added without carries. N items, D digits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

#: A product of two float32 numbers is a multiple of 2^-298 and below 2^256: 554 bits, and 30 more for the sum.
_DIGITS, _LOWEST = 73, -298


class ExactSum(NamedTuple):
    """A sum that adds up leaf by leaf."""

    digits: Any
    """int32 (D,); digit i counts 256^i times 2^-298."""
    not_finite: Any
    """int32: how many items were infinite or not a number; they are not in the digits."""

    @staticmethod
    def zero() -> ExactSum:
        """Return the sum of no items."""
        return ExactSum(np.zeros(_DIGITS, np.int32), np.int32(0))

    def fraction(self) -> Fraction | None:
        """Return the sum, on the host; None where an item is not finite."""
        if int(self.not_finite):
            return None
        whole = sum(int(digit) << (8 * i) for i, digit in enumerate(np.asarray(self.digits)))
        return Fraction(whole, 1 << -_LOWEST)


def exact_dot(x_N: Float[Array, " N"], y_N: Float[Array, " N"], counted_N: Bool[Array, " N"]) -> ExactSum:
    """Return the sum of x times y over the items that count, exactly. N is at most 2^20."""
    assert x_N.size <= 1 << 20, "the digits of more items could overflow before they are carried"
    (negative_x, exponent_x, bytes_x), (negative_y, exponent_y, bytes_y) = _parts(x_N), _parts(y_N)
    finite_N = (exponent_x < 255) & (exponent_y < 255)
    sign_N = jnp.where(counted_N & finite_N, jnp.where(negative_x == negative_y, 1, -1), 0)
    # x y = 2^(place - 298) times the product of the mantissas
    place_N = exponent_x + exponent_y - 2
    products: list[Any] = [0] * 5
    for i, x in enumerate(bytes_x):
        for j, y in enumerate(bytes_y):
            products[i + j] += x * y
    digits: list[Any] = [0] * 8
    for i, product_N in enumerate(products):
        shifted_N = product_N << (place_N % 8)  # below 2^25
        for j in range(4):
            digits[i + j] += (shifted_N >> (8 * j)) & 255
    where_N8 = (place_N // 8)[:, None] + jnp.arange(8)
    sums_D = jnp.zeros(_DIGITS, jnp.int32).at[where_N8].add(sign_N[:, None] * jnp.stack(digits, 1))
    return ExactSum(_carry(sums_D), jnp.sum(counted_N & ~finite_N, dtype=jnp.int32))


def exact_sum(x_N: Float[Array, " N"], counted_N: Bool[Array, " N"]) -> ExactSum:
    """Return the sum of x over the items that count, exactly. N is at most 2^20."""
    return exact_dot(x_N, jnp.ones_like(x_N), counted_N)


def _parts(x_N: Array) -> tuple[Array, Array, list[Array]]:
    """Return whether numbers are negative, their exponents (1 for subnormal ones) and the bytes of their mantissas."""
    bits_N = jax.lax.bitcast_convert_type(x_N.astype(jnp.float32), jnp.int32)
    stored_N, fraction_N = (bits_N >> 23) & 255, bits_N & 0x7FFFFF
    mantissa_N = jnp.where(stored_N > 0, fraction_N | 0x800000, fraction_N)
    return bits_N < 0, jnp.maximum(stored_N, 1), [(mantissa_N >> shift) & 255 for shift in (0, 8, 16)]


def _carry(sums_D: Array) -> Array:
    """Return the same sum with digits between -2^9 and 2^9, so that millions of batches can be added."""
    for _ in range(3):
        carry_D = sums_D[:-1] >> 8
        sums_D = (sums_D - jnp.pad(carry_D << 8, (0, 1))) + jnp.pad(carry_D, (1, 0))
    return sums_D
