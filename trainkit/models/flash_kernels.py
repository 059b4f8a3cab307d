"""The kernels of flash attention (Dao et al. 2022, algorithms 1 and 4; Dao 2023), in Pallas.

One program computes with a block of queries and the blocks of keys that they see, or the other way round. Shapes: M
queries of a block, N keys of a block, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import e, log2
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from trainkit.models.flash_blocks import FlashSizes

#: Scores are logarithms to base 2, which GPUs exponentiate faster.
LOG2_E = log2(e)
#: The score of a position that a query does not see.
UNSEEN = -1e30
_Pair: TypeAlias = tuple[Array, Array]


class Scoring(NamedTuple):
    """How scores are made of queries and keys, and how the kernels run."""

    scale: float
    softcap: float | None
    sloped: bool
    sizes: FlashSizes
    interpret: bool
    """Whether the kernels run as plain JAX, slowly, on any device."""


def forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, low_ref: Any, high_ref: Any, edges_ref: Any, slopes_ref: Any,
    y_ref: Any, total_ref: Any,
    *, scoring: Scoring, keys: int,
) -> None:  # fmt: skip
    """Write attention of a block of queries, and the logarithms of the sums that its probabilities were divided by."""
    q_MK, low_M, high_M = q_ref[...], low_ref[...], high_ref[...]
    m = q_MK.shape[0]
    start, scores_of = pl.program_id(0) * m, partial(_scores, scoring, _slope(scoring, slopes_ref, pl.program_id(1)))

    def add(j: Array, carry: tuple[Array, Array, Array], *, whole: bool) -> tuple[Array, Array, Array]:
        y_MK, top_M, sum_M = carry
        at = pl.ds(j * keys, keys)
        t, s = _places(start, j * keys, (m, keys))
        scores_MN, _ = scores_of(q_MK, k_ref[at, :], t - s)
        if not whole:
            scores_MN = jnp.where(_seen(s, low_M[:, None], high_M[:, None]), scores_MN, UNSEEN)
        new_M = jnp.maximum(top_M, scores_MN.max(1))
        p_MN, shrunk_M = jnp.exp2(scores_MN - new_M[:, None]), jnp.exp2(top_M - new_M)
        v_NK = v_ref[at, :]
        y_MK = y_MK * shrunk_M[:, None] + _dot(p_MN.astype(v_NK.dtype), v_NK)
        return y_MK, new_M, sum_M * shrunk_M + p_MN.sum(1)

    empty = (jnp.zeros(q_MK.shape, jnp.float32), jnp.full((m,), UNSEEN, jnp.float32), jnp.zeros((m,), jnp.float32))
    y_MK, top_M, sum_M = _over_blocks(edges_ref, add, empty)
    y_ref[...] = (y_MK / sum_M[:, None]).astype(y_ref.dtype)
    total_ref[...] = top_M + jnp.log2(sum_M)


def queries_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, low_ref: Any, high_ref: Any, edges_ref: Any, slopes_ref: Any,
    dy_ref: Any, total_ref: Any, sums_ref: Any, dq_ref: Any,
    *, scoring: Scoring, keys: int,
) -> None:  # fmt: skip
    """Write the gradients of a block of queries."""
    q_MK, dy_MK, low_M, high_M = q_ref[...], dy_ref[...], low_ref[...], high_ref[...]
    total_M, sums_M, m = total_ref[...], sums_ref[...], q_MK.shape[0]
    start, scores_of = pl.program_id(0) * m, partial(_scores, scoring, _slope(scoring, slopes_ref, pl.program_id(1)))

    def add(j: Array, dq_MK: Array, *, whole: bool) -> Array:
        at = pl.ds(j * keys, keys)
        k_NK, (t, s) = k_ref[at, :], _places(start, j * keys, (m, keys))
        scores_MN, slope = scores_of(q_MK, k_NK, t - s)
        p_MN = jnp.exp2(scores_MN - total_M[:, None])
        if not whole:
            p_MN = jnp.where(_seen(s, low_M[:, None], high_M[:, None]), p_MN, 0)
        ds_MN = p_MN * (_dot(dy_MK, v_ref[at, :].T) - sums_M[:, None]) * slope
        return dq_MK + _dot(ds_MN.astype(k_NK.dtype), k_NK)

    dq_ref[...] = _over_blocks(edges_ref, add, jnp.zeros(q_MK.shape, jnp.float32)).astype(dq_ref.dtype)


def keys_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, low_ref: Any, high_ref: Any, edges_ref: Any, slopes_ref: Any,
    dy_ref: Any, total_ref: Any, sums_ref: Any, dk_ref: Any, dv_ref: Any,
    *, scoring: Scoring, queries: int, heads: int,
) -> None:  # fmt: skip
    """Write the gradients of a block of keys and values, from all query heads of their group. Scores are transposed."""
    k_NK, v_NK = k_ref[...], v_ref[...]
    n = k_NK.shape[0]
    start, first_head = pl.program_id(0) * n, pl.program_id(1) * heads  # not known within loops, where interpreted

    def of_head(r: Array, sums: _Pair) -> _Pair:
        scores_of = partial(_scores, scoring, _slope(scoring, slopes_ref, first_head + r))

        def add(i: Array, sums: _Pair, *, whole: bool) -> _Pair:
            dk_NK, dv_NK = sums
            at = pl.ds(i * queries, queries)
            q_MK, dy_MK, (s, t) = q_ref[at, r, :], dy_ref[at, r, :], _places(start, i * queries, (n, queries))
            scores_NM, slope = scores_of(k_NK, q_MK, t - s)
            p_NM = jnp.exp2(scores_NM - total_ref[r, at][None])
            if not whole:
                p_NM = jnp.where(_seen(s, low_ref[at][None], high_ref[at][None]), p_NM, 0)
            dv_NK += _dot(p_NM.astype(dy_MK.dtype), dy_MK)
            ds_NM = p_NM * (_dot(v_NK, dy_MK.T) - sums_ref[r, at][None]) * slope
            return dk_NK + _dot(ds_NM.astype(q_MK.dtype), q_MK), dv_NK

        return _over_blocks(edges_ref, add, sums)

    zeros = jnp.zeros(k_NK.shape, jnp.float32)
    dk_NK, dv_NK = jax.lax.fori_loop(0, heads, of_head, (zeros, zeros))
    dk_ref[...], dv_ref[...] = dk_NK.astype(dk_ref.dtype), dv_NK.astype(dv_ref.dtype)


def _over_blocks(edges_ref: Any, add: Callable[..., Any], carry: Any) -> Any:
    """Return what `add` makes of the carry and each block of the range, by its number; `whole` where no pair of its
    positions has to be masked."""
    edges = [edges_ref[number] for number in range(4)]
    for part, whole in enumerate((False, True, False)):
        carry = jax.lax.fori_loop(edges[part], edges[part + 1], partial(add, whole=whole), carry)
    return carry


def _scores(
    scoring: Scoring, slope: Array | None, left: Array, right: Array, ahead: Array
) -> tuple[Float[Array, "X Y"], Array | float]:
    """Return the scores of the rows of `left` with those of `right`, to base 2, and the slope of scores to base e in
    the products; `ahead` is how far each query is ahead of its key."""
    scores = _dot(left, right.T) * scoring.scale
    factor: Array | float = scoring.scale
    if scoring.softcap is not None:
        bent = jnp.tanh(scores / scoring.softcap)
        scores, factor = scoring.softcap * bent, (1 - bent * bent) * scoring.scale
    if slope is not None:
        scores -= slope * ahead
    return scores * LOG2_E, factor


def _slope(scoring: Scoring, slopes_ref: Any, head: Array) -> Array | None:
    return slopes_ref[head] if scoring.sloped else None


def _places(first: Array, second: Array, shape: tuple[int, int]) -> tuple[Int[Array, "X Y"], Int[Array, "X Y"]]:
    """Return the position of each row of a block, and that of each column."""
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return first + rows, second + columns


def _seen(s: Array, low: Array, high: Array) -> Bool[Array, "X Y"]:
    return (low <= s) & (s < high)


def _dot(left: Array, right: Array) -> Float[Array, "X Y"]:
    return jnp.dot(left, right, preferred_element_type=jnp.float32)
