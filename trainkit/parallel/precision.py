"""Numbers of few bits: what is computed in, and how float32 becomes less without being lost.

Stochastic rounding (Gupta et al. 2015) rounds up with the probability that makes the average right. What is added in
small amounts to a number of few bits then counts on average, where rounding to the nearest would lose it every time
(for bfloat16 weights: Zamirai et al. 2020).
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt

#: Numbers along the last axis that share a power of two.
BLOCK = 32
#: Bits of mantissa; what they drop of float32's; and the exponent of float32 that is 0 in signed codes and in unsigned
#: ones, which have 4 and 5 bits of exponent: the greatest of a block is just below 1.
MANTISSA, DROPPED = 3, 20
LEAST_SIGNED, LEAST_UNSIGNED = 127 - 16, 127 - 32
#: Between the numbers of a signed block next to zero.
LEAST_STEP = 2.0 ** (LEAST_SIGNED - 127 + 1 - MANTISSA)
#: Exponents of blocks, so that their inverse too is a number that no device takes for zero.
LEAST_SCALE, GREATEST_SCALE = -126, 126
#: What the two hashes of an array begin with: any two odd numbers do.
_SEEDS = (0x9E3779B1, 0x7FEB352D)
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


class Blocks(eqx.Module):
    """Numbers in 8 bit and blocks of them, along the last axis, with a power of two each.

    int8 codes are E4M3, as in the microscaling formats (Rouhani et al. 2023). uint8 codes have a fifth bit of exponent
    where those have a sign, and no zero, as a second moment must not become one: what is divided by its root would
    explode (Li et al. 2023, section 4.1). Both are of even relative precision, to 2^-15 and 2^-32 of the greatest; that
    linear steps are not good enough for moments is known from Dettmers et al. 2022. All blocks have the same levels, so
    that a number is not rounded again when its block is.
    """

    codes: Int[Array, ...] | UInt[Array, ...]
    scales: Int[Array, ...]


def compute_dtype(compute: str) -> jnp.dtype:
    """That of a plan's `compute`: with fp8, all that is no product of a linear layer is bfloat16."""
    return jnp.dtype("bfloat16" if compute == "fp8" else compute)


def random_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt[Array, ...]:
    """32 random bits for each number: a hash of its place (the finaliser of MurmurHash3, Appleby 2011) under `key`.

    Good enough to round with; unlike jax's generators it fuses into what uses it, so that it costs no memory.
    """
    first, second = jax.random.bits(key, (2,))
    return mix(mix(places(shape) ^ first) ^ second)


def places(shape: tuple[int, ...]) -> UInt[Array, ...]:
    """Return the number of each element of an array, row by row, modulo 2^32."""
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % (1 << 32)
        place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    return place


def mix(h: UInt[Array, ...]) -> UInt[Array, ...]:
    """Return other 32 bits for each, every bit of which depends on all bits of the input (Appleby 2011)."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def fingerprint(x: Array) -> UInt[Array, 2]:
    """Two hashes of all numbers at their places, which tell one array from another and not how it is shared out.

    What the numbers' hashes add up to is the same on every device, and on any number of them. It is no protection
    against somebody who means harm.
    """
    bits = jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    sums = (mix(mix(places(x.shape) ^ jnp.uint32(seed)) ^ bits).sum(dtype=jnp.uint32) for seed in _SEEDS)
    return jnp.stack(list(sums))


def to_bfloat16(x: Float[Array, ...], bits: UInt[Array, ...]) -> Float[Array, ...]:
    """float32 rounded stochastically to bfloat16 by the lower 16 of `bits`; what is not finite stays as it is."""
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((raw + (bits & 0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def to_blocks(x: Float[Array, ...], bits: UInt[Array, ...], bounds: Float[Array, ...], *, signed: bool) -> Blocks:
    """float32 rounded stochastically to 8 bit by the lower 16 of `bits`; all of `x` is >= 0 where not `signed`.

    `bounds` says of each block what no number in it exceeds. (To look for the greatest here, all of `x` would have to
    be in memory; as it is, it need only be computed.) Unsigned, what is less than 2^-32 of it becomes that.
    """
    # one sixteenth more: so the greatest is not above the greatest code
    scales = jnp.clip(_exponent_above(bounds * (16 / 15)), LEAST_SCALE, GREATEST_SCALE)
    small = jnp.abs(x) * _power_of_two(-_spread(scales, x.shape))
    chance = bits & 0xFFFF
    raw = (jax.lax.bitcast_convert_type(small, jnp.uint32) + (chance << (DROPPED - 16))) >> DROPPED
    codes = raw.astype(jnp.int32) - ((LEAST_SIGNED if signed else LEAST_UNSIGNED) << MANTISSA)
    if not signed:
        return Blocks(jnp.clip(codes, 0, 255).astype(jnp.uint8), scales.astype(jnp.int8))
    # below the least exponent levels are equally far apart, down to zero
    near_zero = jnp.floor(small / LEAST_STEP + (chance.astype(jnp.float32) + 0.5) / (1 << 16)).astype(jnp.int32)
    codes = jnp.where(codes < 1 << MANTISSA, near_zero, jnp.minimum(codes, 127))
    return Blocks((jnp.sign(x).astype(jnp.int32) * codes).astype(jnp.int8), scales.astype(jnp.int8))


def from_blocks(blocks: Blocks) -> Float[Array, ...]:
    """The float32 numbers that `to_blocks` rounded to."""
    return _value(blocks.codes, _spread(blocks.scales, blocks.codes.shape))


def greatest_in(x: Float[Array, ...] | Blocks) -> Float[Array, ...]:
    """The greatest magnitude in each block."""
    if not isinstance(x, Blocks):
        return _greatest(jnp.abs(x))
    return jnp.abs(_value(_greatest(jnp.abs(x.codes)), x.scales))


def zero_blocks(shape: tuple[int, ...], *, signed: bool) -> Blocks:
    """Nothing but zeros, or, unsigned, numbers next to it."""
    scales = (*shape[:-1], -(-shape[-1] // BLOCK))
    return Blocks(jnp.zeros(shape, jnp.int8 if signed else jnp.uint8), jnp.full(scales, LEAST_SCALE, jnp.int8))


def _value(codes: Array, scales: Array) -> Float[Array, ...]:
    signed, whole = codes.dtype == jnp.int8, jnp.abs(codes.astype(jnp.int32))
    raw = (whole + ((LEAST_SIGNED if signed else LEAST_UNSIGNED) << MANTISSA)) << DROPPED
    value = jax.lax.bitcast_convert_type(raw, jnp.float32)
    if signed:
        value = jnp.sign(codes) * jnp.where(whole < 1 << MANTISSA, whole * LEAST_STEP, value)
    return value * _power_of_two(scales)


def _power_of_two(exponents: Array) -> Float[Array, ...]:
    return jax.lax.bitcast_convert_type((exponents.astype(jnp.int32) + 127) << 23, jnp.float32)


def _greatest(x: Array) -> Array:
    """Of each block; the last one of a row may be short."""
    short = -x.shape[-1] % BLOCK
    if short:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)])
    return x.reshape(*x.shape[:-1], -1, BLOCK).max(-1)


def _spread(scales: Int[Array, ...], shape: tuple[int, ...]) -> Int[Array, ...]:
    """The scale of its block for each number."""
    spread = jnp.broadcast_to(scales[..., None], (*scales.shape, BLOCK)).reshape(*scales.shape[:-1], -1)
    return spread[..., : shape[-1]]


def _exponent_above(x: Float[Array, ...]) -> Int[Array, ...]:
    """The least e for which x < 2^e; of numbers below 2^-126 that is -126."""
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return ((raw >> 23) & 0xFF).astype(jnp.int32) - 126
