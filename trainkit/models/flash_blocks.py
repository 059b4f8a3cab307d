"""Which blocks of queries and keys the kernels of flash attention compute with.

Each query sees the positions from `low` to before `high`, and neither falls from one query to the next. Causality,
windows and the documents of a packed row are all such intervals. So the blocks of keys that a block of queries sees
follow each other, as do the blocks of queries that see a block of keys, and all other blocks are skipped.

Shapes: B batch, T positions, I blocks of queries, J blocks of keys, E four edges of a range of blocks: see `_edges`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


class FlashBlock(NamedTuple):
    """The queries and keys that a program of the kernel computes with at once, and its warps."""

    queries: int
    keys: int
    warps: int


class FlashSizes(NamedTuple):
    """The blocks of the forward pass, of the gradient of queries, and of that of keys and values."""

    forward: FlashBlock
    queries: FlashBlock
    keys: FlashBlock

    @staticmethod
    def of(width: int) -> FlashSizes:
        """Return sizes for heads of this width whose blocks fit into the shared memory of GPUs from Ampere on."""
        if width <= 64:
            return FlashSizes(FlashBlock(128, 64, 4), FlashBlock(64, 64, 4), FlashBlock(64, 64, 4))
        if width <= 128:
            return FlashSizes(FlashBlock(128, 64, 8), FlashBlock(64, 32, 4), FlashBlock(32, 64, 4))
        # with 4 warps threads have too few registers
        return FlashSizes(FlashBlock(64, 32, 8), FlashBlock(32, 32, 4), FlashBlock(32, 32, 8))

    @property
    def multiple(self) -> int:
        """Return the number of positions of which all blocks are parts."""
        return max(max(blocks.queries, blocks.keys) for blocks in self)


def intervals(
    segments_BT: Int[Array, "B T"] | None, t: int, *, window: int | None, causal: bool
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Return the first position that each query sees and the one after the last, each (B, T); B is 1 without
    segments."""
    places_T = jnp.arange(t, dtype=jnp.int32)
    if segments_BT is None:
        low_BT, high_BT = jnp.zeros((1, t), jnp.int32), jnp.full((1, t), t, jnp.int32)
    else:
        changes_BT = segments_BT[:, 1:] != segments_BT[:, :-1]
        yes_B1 = jnp.ones((len(segments_BT), 1), bool)
        begins_BT = jnp.concatenate([yes_B1, changes_BT], 1)
        ends_BT = jnp.concatenate([changes_BT, yes_B1], 1)
        low_BT = jax.lax.cummax(jnp.where(begins_BT, places_T, 0), axis=1)
        high_BT = jax.lax.cummin(jnp.where(ends_BT, places_T + 1, t), axis=1, reverse=True)
    if window is not None:
        low_BT = jnp.maximum(low_BT, places_T - window + 1)
        high_BT = jnp.minimum(high_BT, places_T + window)
    return low_BT, jnp.minimum(high_BT, places_T + 1) if causal else high_BT


def key_blocks(low_BT: Int[Array, "B T"], high_BT: Int[Array, "B T"], blocks: FlashBlock) -> Int[Array, "B I E"]:
    """Return the blocks of keys that each block of queries sees, as `_edges`."""
    m, n = blocks.queries, blocks.keys
    return _edges(low_BT[:, ::m], low_BT[:, m - 1 :: m], high_BT[:, ::m], high_BT[:, m - 1 :: m], n)


def query_blocks(low_BT: Int[Array, "B T"], high_BT: Int[Array, "B T"], blocks: FlashBlock) -> Int[Array, "B J E"]:
    """Return the blocks of queries that see each block of keys, as `_edges`."""
    first_J1 = jnp.arange(0, low_BT.shape[1], blocks.keys, dtype=jnp.int32)[:, None]
    last_J1 = first_J1 + blocks.keys - 1

    def before(end_BT: Array, place_J1: Array) -> Int[Array, "B J"]:
        """Return how many queries have an end at or before a place: neither end ever falls."""
        return (end_BT[:, None] <= place_J1).sum(-1, dtype=jnp.int32)

    return _edges(
        before(high_BT, first_J1),
        before(high_BT, last_J1),
        before(low_BT, first_J1),
        before(low_BT, last_J1),
        blocks.queries,
    )


def _edges(some: Array, whole: Array, whole_end: Array, some_end: Array, size: int) -> Int[Array, "B X E"]:
    """Return the range of blocks of `size` with some positions that are seen, and within it the range of those with
    nothing else: in the order of the range, the first blocks of four parts.

    Args:
        some, some_end: the positions of which at least one is seen.
        whole, whole_end: the positions that are all seen, by all.
    """
    first, last = some // size, -(-some_end // size)
    inner = jnp.clip(-(-whole // size), first, last)
    return jnp.stack([first, inner, jnp.clip(whole_end // size, inner, last), last], -1)
