"""Number formats: the dtype of computation, stochastic rounding to bfloat16 and to 8 bit, and fingerprints of arrays.

Stochastic rounding (Gupta et al. 2015) rounds up with the probability that makes the average right. Small updates of a
number in few bits then count on average, where rounding to the nearest would lose each one (for bfloat16 weights:
Zamirai et al. 2020).
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt

#: Numbers along the last axis that share a power of two.
BLOCK = 32
#: Bits of mantissa, and the bits of float32's mantissa that are dropped; then the exponent of float32 that is 0 in
#: signed and in unsigned codes, with 4 and 5 bits of exponent. The greatest number of a block is just below 1.
MANTISSA, DROPPED = 3, 20
LEAST_SIGNED, LEAST_UNSIGNED = 127 - 16, 127 - 32
#: The distance of the numbers next to zero in a signed block.
LEAST_STEP = 2.0 ** (LEAST_SIGNED - 127 + 1 - MANTISSA)
#: The exponents of blocks. No device treats their powers of two, or the inverses, as zero.
LEAST_SCALE, GREATEST_SCALE = -126, 126
#: The seeds of the two hashes of an array: any two odd numbers.
_SEEDS = (0x9E3779B1, 0x7FEB352D)
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


class Blocks(eqx.Module):
    """Numbers in 8 bit, in blocks along the last axis that share a power of two.

    int8 codes are E4M3, as in the microscaling formats (Rouhani et al. 2023). uint8 codes have a fifth bit of exponent
    instead of the sign, and no zero, because a second moment must not become zero: the update, which is divided by its
    root, would explode (Li et al. 2023, section 4.1). Both have an even relative precision, down to 2^-15 and 2^-32 of
    the greatest number; linear steps are not good enough for moments (Dettmers et al. 2022). All blocks have the same
    levels, so that a number is not rounded again when the scale of its block changes.
    """

    codes: Int[Array, ...] | UInt[Array, ...]
    scales: Int[Array, ...]


def compute_dtype(compute: str) -> jnp.dtype:
    """Return the dtype of a plan's `compute`. With fp8 it is bfloat16: only products of linear layers are in fp8."""
    return jnp.dtype("bfloat16" if compute == "fp8" else compute)


def random_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt[Array, ...]:
    """Return 32 random bits for each element: a hash of its place and `key` (MurmurHash3's finaliser, Appleby 2011).

    They are good enough for rounding. Unlike jax's generators the hash fuses into its user, so it takes no memory.
    """
    first, second = jax.random.bits(key, (2,))
    return mix(mix(places(shape) ^ first) ^ second)


def places(shape: tuple[int, ...]) -> UInt[Array, ...]:
    """Return the index of each element of an array in row-major order, modulo 2^32."""
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % (1 << 32)
        place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    return place


def mix(h: UInt[Array, ...]) -> UInt[Array, ...]:
    """Return a hash of each element; each of its 32 bits depends on all bits of the input (Appleby 2011)."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def fingerprint(x: Array) -> UInt[Array, 2]:
    """Return two hashes of an array's numbers and their places.

    Each is a sum of hashes, so it does not depend on the number of devices or on the sharding. It does not protect
    against an attacker.
    """
    bits = jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    sums = (mix(mix(places(x.shape) ^ jnp.uint32(seed)) ^ bits).sum(dtype=jnp.uint32) for seed in _SEEDS)
    return jnp.stack(list(sums))


def to_bfloat16(x: Float[Array, ...], bits: UInt[Array, ...]) -> Float[Array, ...]:
    """Return float32 numbers rounded stochastically to bfloat16 by the lower 16 `bits`. Infinities and NaN stay."""
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = jax.lax.bitcast_convert_type((raw + (bits & 0xFFFF)) & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def to_blocks(x: Float[Array, ...], bits: UInt[Array, ...], bounds: Float[Array, ...], *, signed: bool) -> Blocks:
    """Return float32 numbers rounded stochastically to 8 bit by the lower 16 `bits`.

    Args:
        bounds: for each block, a bound of its magnitudes. (To find the greatest here, all of `x` would have to be in
            memory; with the bound it is only computed.)
        signed: if False, all of `x` is >= 0, and what is less than 2^-32 of the bound becomes that.
    """
    # one sixteenth more, so that the greatest number does not exceed the greatest code
    scales = jnp.clip(_exponent_above(bounds * (16 / 15)), LEAST_SCALE, GREATEST_SCALE)
    small = jnp.abs(x) * _power_of_two(-_spread(scales, x.shape))
    chance = bits & 0xFFFF
    raw = (jax.lax.bitcast_convert_type(small, jnp.uint32) + (chance << (DROPPED - 16))) >> DROPPED
    codes = raw.astype(jnp.int32) - ((LEAST_SIGNED if signed else LEAST_UNSIGNED) << MANTISSA)
    if not signed:
        return Blocks(jnp.clip(codes, 0, 255).astype(jnp.uint8), scales.astype(jnp.int8))
    # below the least exponent the levels are evenly spaced, down to zero
    near_zero = jnp.floor(small / LEAST_STEP + (chance.astype(jnp.float32) + 0.5) / (1 << 16)).astype(jnp.int32)
    codes = jnp.where(codes < 1 << MANTISSA, near_zero, jnp.minimum(codes, 127))
    return Blocks((jnp.sign(x).astype(jnp.int32) * codes).astype(jnp.int8), scales.astype(jnp.int8))


def from_blocks(blocks: Blocks) -> Float[Array, ...]:
    """Return the float32 numbers that the blocks hold."""
    return _value(blocks.codes, _spread(blocks.scales, blocks.codes.shape))


def greatest_in(x: Float[Array, ...] | Blocks) -> Float[Array, ...]:
    """Return the greatest magnitude in each block."""
    if not isinstance(x, Blocks):
        return _greatest(jnp.abs(x))
    return jnp.abs(_value(_greatest(jnp.abs(x.codes)), x.scales))


def zero_blocks(shape: tuple[int, ...], *, signed: bool) -> Blocks:
    """Return blocks of zeros or, if unsigned, of the numbers next to zero."""
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
    """Return the greatest number of each block; the last block of a row may be short."""
    short = -x.shape[-1] % BLOCK
    if short:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)])
    return x.reshape(*x.shape[:-1], -1, BLOCK).max(-1)


def _spread(scales: Int[Array, ...], shape: tuple[int, ...]) -> Int[Array, ...]:
    """Return, for each number, the scale of its block."""
    spread = jnp.broadcast_to(scales[..., None], (*scales.shape, BLOCK)).reshape(*scales.shape[:-1], -1)
    return spread[..., : shape[-1]]


def _exponent_above(x: Float[Array, ...]) -> Int[Array, ...]:
    """Return the least e for which x < 2^e; -126 for numbers below 2^-126."""
    raw = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return ((raw >> 23) & 0xFF).astype(jnp.int32) - 126
