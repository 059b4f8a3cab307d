"""Flash attention (Dao et al. 2022; Dao 2023) in kernels for GPUs, with what cuDNN's lacks: packed rows without a mask
of T x T, windows in both directions, capped scores and slopes.

The kernels are written in Pallas and compiled by Triton. Shapes as in `attention.py` and `flash_blocks.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from trainkit.models.flash_blocks import FlashBlock, FlashSizes, intervals, key_blocks, query_blocks
from trainkit.models.flash_kernels import Scoring, forward_kernel, keys_kernel, queries_kernel

#: Products of Triton have at least so many rows and columns.
LEAST_WIDTH = 16


def flash_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    segments_BT: Int[Array, "B T"] | None,
    slopes_H: Float[Array, " H"] | None,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    causal: bool = True,
    interpret: bool = False,
    sizes: FlashSizes | None = None,
) -> Float[Array, "B T H K"]:
    """Return softmax attention of each position to those that it sees; the softmax is in float32.

    The positions of a segment must follow each other. Positions are filled up to whole blocks, and the width of heads
    to a power of two.
    """
    _, t, h, width = q_BTHK.shape
    sizes = sizes or FlashSizes.of(width)
    more = -t % sizes.multiple
    wide = max(LEAST_WIDTH, 1 << (width - 1).bit_length())
    low_BT, high_BT = intervals(segments_BT, t, window=window, causal=causal)
    if more:
        # each position beyond the end sees itself
        after_BT = jnp.broadcast_to(jnp.arange(t, t + more, dtype=jnp.int32), (low_BT.shape[0], more))
        low_BT, high_BT = (jnp.concatenate(parts, 1) for parts in ((low_BT, after_BT), (high_BT, after_BT + 1)))
    if more or wide > width:
        fill = ((0, 0), (0, more), (0, 0), (0, wide - width))
        q_BTHK, k_BTGK, v_BTGK = (jnp.pad(x, fill) for x in (q_BTHK, k_BTGK, v_BTGK))
    slopes = jnp.zeros(h, jnp.float32) if slopes_H is None else slopes_H.astype(jnp.float32)
    scoring = Scoring(scale, softcap, slopes_H is not None, sizes, interpret)
    return _flash(q_BTHK, k_BTGK, v_BTGK, low_BT, high_BT, slopes, scoring)[:, :t, :, :width]


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _flash(q: Array, k: Array, v: Array, low: Array, high: Array, slopes: Array, scoring: Scoring) -> Array:
    return _forward(q, k, v, low, high, slopes, scoring)[0]


def _forward(
    q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, low_BT: Array, high_BT: Array, slopes_H: Array, scoring: Scoring
) -> tuple[Array, tuple[Array, ...]]:
    (b, t, h, _), blocks = q_BTHK.shape, scoring.sizes.forward
    specs = _Specs(q_BTHK, k_BTGK, low_BT)
    y_BTHK, total_BHT = pl.pallas_call(
        partial(forward_kernel, scoring=scoring, keys=blocks.keys),
        grid=(t // blocks.queries, h, b),
        in_specs=specs.of_queries(blocks)[:-1],
        out_specs=[specs.rows(blocks.queries), specs.numbers(blocks.queries)],
        out_shape=[q_BTHK, jax.ShapeDtypeStruct((b, h, t), jnp.float32)],
        **_run(scoring, blocks),
    )(q_BTHK, k_BTGK, v_BTGK, low_BT, high_BT, key_blocks(low_BT, high_BT, blocks), slopes_H)
    return y_BTHK, (q_BTHK, k_BTGK, v_BTGK, low_BT, high_BT, slopes_H, y_BTHK, total_BHT)


def _backward(
    scoring: Scoring, residuals: tuple[Array, ...], dy_BTHK: Array
) -> tuple[Array, Array, Array, None, None, None]:
    q_BTHK, k_BTGK, v_BTGK, low_BT, high_BT, slopes_H, y_BTHK, total_BHT = residuals
    (b, t, h, _), groups = q_BTHK.shape, k_BTGK.shape[2]
    # the sum over each row of probabilities x their gradients (Dao et al. 2022, appendix B.2)
    sums_BHT = (dy_BTHK.astype(jnp.float32) * y_BTHK.astype(jnp.float32)).sum(-1).swapaxes(1, 2)
    specs, blocks = _Specs(q_BTHK, k_BTGK, low_BT), scoring.sizes.queries
    given = (q_BTHK, k_BTGK, v_BTGK, low_BT, high_BT)
    made = (slopes_H, dy_BTHK, total_BHT, sums_BHT)
    numbers = [specs.numbers(blocks.queries)] * 2
    dq_BTHK = pl.pallas_call(
        partial(queries_kernel, scoring=scoring, keys=blocks.keys),
        grid=(t // blocks.queries, h, b),
        in_specs=[*specs.of_queries(blocks), *numbers],
        out_specs=specs.rows(blocks.queries),
        out_shape=q_BTHK,
        **_run(scoring, blocks),
    )(*given, key_blocks(low_BT, high_BT, blocks), *made)
    blocks = scoring.sizes.keys
    dk_BTGK, dv_BTGK = pl.pallas_call(
        partial(keys_kernel, scoring=scoring, queries=blocks.queries, heads=h // groups),
        grid=(t // blocks.keys, groups, b),
        in_specs=specs.of_keys(blocks),
        out_specs=[specs.rows(blocks.keys)] * 2,
        out_shape=[k_BTGK, v_BTGK],
        **_run(scoring, blocks),
    )(*given, query_blocks(low_BT, high_BT, blocks), *made)
    return dq_BTHK, dk_BTGK, dv_BTGK, None, None, None


_flash.defvjp(_forward, _backward)


class _Specs:
    """Which part of each array a program of a kernel sees. Programs are numbered by block, head and row."""

    def __init__(self, q_BTHK: Array, k_BTGK: Array, low_BT: Array) -> None:
        _, self._t, self._heads, self._width = q_BTHK.shape
        self._of_group = self._heads // k_BTGK.shape[2]
        self._rows = len(low_BT)

    def rows(self, size: int) -> pl.BlockSpec:
        """Return that of queries, keys or the like: a block of one head."""
        return pl.BlockSpec((None, size, None, self._width), lambda i, h, b: (b, i, h, 0))

    def numbers(self, size: int) -> pl.BlockSpec:
        """Return that of arrays (B, H, T): a block of one head."""
        return pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, i))

    def of_queries(self, blocks: FlashBlock) -> list[pl.BlockSpec]:
        """Return those of a program with a block of queries: queries, keys, values, ends, edges, slopes, and what is
        like queries."""
        group = self._of_group
        whole = pl.BlockSpec((None, self._t, None, self._width), lambda i, h, b: (b, 0, h // group, 0))
        own, ends = self.rows(blocks.queries), self._of_row(blocks.queries)
        return [own, whole, whole, ends, ends, self._edges(), self._slopes(), own]

    def of_keys(self, blocks: FlashBlock) -> list[pl.BlockSpec]:
        """Return those of a program with a block of keys, which sees all queries of their group: queries, keys, values,
        ends, edges, slopes, gradients of the result, and two arrays of numbers."""
        group = self._of_group
        whole = pl.BlockSpec((None, self._t, group, self._width), lambda j, g, b: (b, 0, g, 0))
        numbers = pl.BlockSpec((None, group, self._t), lambda j, g, b: (b, g, 0))
        own, row = self.rows(blocks.keys), self._row
        ends = pl.BlockSpec((None, self._t), lambda j, g, b: (row(b), 0))
        return [whole, own, own, ends, ends, self._edges(), self._slopes(), whole, numbers, numbers]

    def _row(self, b: Any) -> Any:
        """Return the row of what may be the same for all."""
        return b if self._rows > 1 else 0

    def _of_row(self, size: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, size), lambda i, h, b: (self._row(b), i))

    def _edges(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, 4), lambda i, h, b: (self._row(b), i, 0))

    def _slopes(self) -> pl.BlockSpec:
        return pl.BlockSpec((self._heads,), lambda i, h, b: (0,))


def _run(scoring: Scoring, blocks: FlashBlock) -> dict[str, Any]:
    from jax.experimental.pallas import triton  # deprecated by jax 0.11, to be removed

    params = triton.CompilerParams(num_warps=blocks.warps, num_stages=2)
    return {"compiler_params": params, "interpret": scoring.interpret}
