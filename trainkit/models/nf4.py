"""Matrices in 4 bit (QLoRA, Dettmers et al. 2023): NormalFloat numbers in blocks, with scales of 8 bit.

B blocks of 64 numbers of a matrix, taken row by row, O = B / 256 blocks of scales, L any leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt

from trainkit.models.casting import Exact
from trainkit.parallel.precision import fingerprint

#: Numbers that share a scale; scales that share one in turn (their section 3).
BLOCK, SCALES = 64, 256


def _levels() -> np.ndarray:
    """Return the 16 numbers from -1 to 1 (their appendix E): quantiles of the normal distribution, 8 above zero, 7
    below."""
    most = 1 - (1 / 30 + 1 / 32) / 2
    above, below = ([NormalDist().inv_cdf(p) for p in np.linspace(most, 0.5, n)[:-1]] for n in (9, 8))
    levels = np.array(sorted([*above, 0.0, *(-x for x in below)]))
    return (levels / levels.max()).astype(np.float32)


LEVELS = _levels()


class Nf4(eqx.Module):
    """A matrix in 4 bit, or a stack of them, that is never trained; `x @ matrix` multiplies with it."""

    codes: UInt[Array, "*L B 32"]
    """Two to a byte, the first in the upper half."""
    scales: Int[Array, "*L B"]
    """What each block's largest magnitude is above the `mean`, in units of `unit`."""
    unit: Exact
    """(*L, O)."""
    mean: Exact
    """(*L,): of the largest magnitudes, nearly."""
    source: UInt[Array, "*L 2"] | None
    """The `fingerprint` of its rows' for each matrix as it was: how it is rounded may differ among devices."""
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the matrices that it represents, (*L, in, out)."""
        return (*self.codes.shape[:-2], self.inputs, self.outputs)

    def dequantise(self, dtype: Any) -> Float[Array, "*L in out"]:
        """Return the numbers that it represents, in `dtype`."""
        lead, blocks = self.codes.shape[:-2], self.codes.shape[-2]
        unit = jnp.repeat(self.unit.value, SCALES, axis=-1)[..., :blocks]
        largest = self.scales * unit + self.mean.value[..., None]
        halves = jnp.stack([self.codes >> 4, self.codes & 15], axis=-1)
        values = jnp.asarray(LEVELS)[halves].reshape(*lead, blocks, BLOCK) * largest[..., None]
        flat = values.astype(dtype).reshape(*lead, -1)
        return flat[..., : self.inputs * self.outputs].reshape(self.shape)

    def __rmatmul__(self, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
        """In the dtype of `x`."""
        return nf4_product(x, self)


def quantise(weight: Float[Array, "*L in out"]) -> Nf4:
    """Return each number rounded to the nearest of 16 levels, scaled to the largest magnitude of its block.

    One matrix is packed at a time, because packing needs more memory than the matrix.
    """
    return replace(_round(weight), source=_source(weight))


def _round(weight: Float[Array, "*L in out"]) -> Nf4:
    if weight.ndim > 2:
        return jax.lax.map(_round, weight)
    inputs, outputs = weight.shape
    blocks = _pad(weight.astype(jnp.float32).reshape(-1), BLOCK).reshape(-1, BLOCK)
    largest = jnp.abs(blocks).max(-1)
    between = (LEVELS[1:] + LEVELS[:-1]) / 2
    shares = blocks / jnp.where(largest > 0, largest, 1)[:, None]
    # count the levels below each number: this fuses, whereas a search would keep its state for each number in memory
    codes = (shares[..., None] > between).sum(-1, dtype=jnp.uint8)
    mean = _mean(largest)
    above = largest - mean
    unit = jnp.abs(_pad(above, SCALES)).reshape(-1, SCALES).max(-1) / 127
    units = jnp.repeat(jnp.where(unit > 0, unit, 1), SCALES, axis=-1)[..., : above.shape[-1]]
    scales = jnp.round(above / units).astype(jnp.int8)
    codes = codes[..., 0::2] << 4 | codes[..., 1::2]
    return Nf4(codes, scales, Exact(unit), Exact(mean), None, inputs, outputs)


def _source(weight: Float[Array, "*L in out"]) -> UInt[Array, "*L 2"]:
    """Return the fingerprint of each matrix, taken a few rows at a time: it needs several times their memory."""
    *lead, inputs, outputs = weight.shape
    rows = jax.lax.map(fingerprint, weight.reshape(-1, outputs), batch_size=-(-inputs // 64))
    return jax.vmap(fingerprint)(rows.reshape(-1, inputs, 2)).reshape(*lead, 2)


def sources(tree: PyTree) -> PyTree:
    """Return the tree with each matrix in 4 bit replaced by the fingerprint of its source."""
    return _replace_packed(tree, lambda packed: packed.source)


def without_sources(tree: PyTree) -> PyTree:
    """Return the tree with the source fingerprints of matrices in 4 bit removed."""
    return _replace_packed(tree, lambda packed: replace(packed, source=None))


def _replace_packed(tree: PyTree, made: Callable[[Nf4], Any]) -> PyTree:
    return jax.tree.map(
        lambda node: made(node) if isinstance(node, Nf4) else node, tree, is_leaf=lambda node: isinstance(node, Nf4)
    )


def _mean(x: Float[Array, "*L B"]) -> Float[Array, "*L"]:
    """Return the mean of non-negative numbers to about ten bits, summed in integers, so that it does not depend on how
    blocks are shared among devices.

    A mean to the last bit would differ with the number of devices, and so would the model.
    """
    levels = (1 << min(20, 31 - x.shape[-1].bit_length())) - 1
    most = x.max(-1)
    counted = jnp.round(x / jnp.where(most > 0, most, 1)[..., None] * levels).astype(jnp.uint32)
    return counted.sum(-1, dtype=jnp.uint32).astype(jnp.float32) * (most / (levels * x.shape[-1]))


@jax.custom_vjp
def nf4_product(x: Float[Array, "*n in"], weight: Nf4) -> Float[Array, "*n out"]:
    """Return x @ weight. The backward pass dequantises again, so that the model is never in memory in full."""
    return x @ weight.dequantise(x.dtype)


def _forward(x: Array, weight: Nf4) -> tuple[Array, Nf4]:
    return nf4_product(x, weight), weight


def _backward(weight: Nf4, dy: Array) -> tuple[Array, None]:
    return dy @ weight.dequantise(dy.dtype).T, None


nf4_product.defvjp(_forward, _backward)


def _pad(x: Float[Array, "*L n"], multiple: int) -> Float[Array, "*L m"]:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % multiple)])
