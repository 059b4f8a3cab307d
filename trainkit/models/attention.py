"""Causal attention, by the implementation that `parallel.devices.choose_attention` names.

Shapes: B batch, T positions, S positions looked at, H query heads, G heads of keys and values, each shared by H / G
query heads (Ainslie et al. 2023), N = T x H / G queries of one such group, K width of a head, L layers.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from trainkit.parallel.devices import AttentionName
from trainkit.parallel.rows import on_own_rows

#: Queries that `lean_attention` takes at once: what lies beyond the last of them is neither computed nor kept.
LEAST_QUERIES, MOST_BLOCKS = 128, 8


class KeyValues(NamedTuple):
    """Keys and values of the positions seen so far, of one layer or, stacked, of all."""

    k_BSGK: Float[Array, "*L B S G K"]
    v_BSGK: Float[Array, "*L B S G K"]


def attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    positions_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"] | None,
    cache: KeyValues | None,
    *,
    implementation: AttentionName,
) -> tuple[Float[Array, "B T H K"], KeyValues | None]:
    """Of these positions to one another, or, with a cache, to all that it holds: the cache then has these as well."""
    if cache is None:
        return causal_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, implementation=implementation), None
    return cached_attention(q_BTHK, k_BTGK, v_BTGK, cache, positions_BT)


def causal_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    segments_BT: Int[Array, "B T"] | None,
    *,
    implementation: AttentionName,
    window: int | None = None,
) -> Float[Array, "B T H K"]:
    """Softmax attention over each position and those before it (Vaswani et al. 2017), of its own segment where given.

    With `window`, over the last `window` of these, its own included (Beltagy et al. 2020). Padding is a segment like
    any other here: every position sees at least itself, so that all numbers stay finite. The softmax is in float32.
    """
    match implementation:
        case "lean":
            return lean_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, window)
        case "xla" | "cudnn":
            # no mask at all without segments: the kernels then know the triangle, and skip what it hides
            same_B1TT = None if segments_BT is None else (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
            return jax.nn.dot_product_attention(
                q_BTHK,
                k_BTGK,
                v_BTGK,
                mask=same_B1TT,
                is_causal=True,
                local_window_size=None if window is None else (window - 1, 0),
                implementation=implementation,
            )
        case "splash":
            return splash_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, window)
        case _:
            assert_never(implementation)


def cached_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    cache: KeyValues,
    positions_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T H K"], KeyValues]:
    """Attention to all cached positions up to each query's own; stores the new keys and values at `positions_BT`."""
    rows_B1 = jnp.arange(q_BTHK.shape[0])[:, None]
    cache = KeyValues(
        cache.k_BSGK.at[rows_B1, positions_BT].set(k_BTGK), cache.v_BSGK.at[rows_B1, positions_BT].set(v_BTGK)
    )
    visible_B1TS = (jnp.arange(cache.k_BSGK.shape[1]) <= positions_BT[:, :, None])[:, None]
    q, k, v = q_BTHK, cache.k_BSGK, cache.v_BSGK
    if q.dtype == jnp.float16:  # of which XLA has no product summed in float32 on CPU, and jax asks for one
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, mask=visible_B1TS).astype(q_BTHK.dtype), cache


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def lean_attention(
    q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, segments_BT: Array | None, window: int | None
) -> Float[Array, "B T H K"]:
    """Attention in plain matrix products, with the backward pass written out.

    The probabilities are kept, in the dtype of the input, so that the backward pass needs neither mask nor softmax; and
    the sum over each row of probabilities x their gradients is taken from the output instead (Dao et al. 2022,
    appendix B.2). Queries go in blocks, each with the keys up to its last position only.
    """
    return _lean_forward(q_BTHK, k_BTGK, v_BTGK, segments_BT, window)[0]


def _lean_forward(
    q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, segments_BT: Array | None, window: int | None
) -> tuple[Array, tuple]:
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    outputs, kept = [], []
    for first, last in _query_blocks(q_BTHK.shape[1]):
        q_BGNK = _by_group(q_BTHK[:, first:last], k_BTGK.shape[2])
        scores_BGNS = _product("bgnk,bgsk->bgns", q_BGNK, k_BGTK[:, :, :last]) * _scale(q_BTHK)
        visible = _visible(first, last, segments_BT, window)
        b, g, n, s = scores_BGNS.shape
        scores_BGNS = jnp.where(visible, scores_BGNS.reshape(b, g, -1, last - first, s), -1e30).reshape(b, g, n, s)
        weights_BGNS = jnp.exp(scores_BGNS - scores_BGNS.max(-1, keepdims=True))
        p_BGNS = (weights_BGNS / weights_BGNS.sum(-1, keepdims=True)).astype(q_BTHK.dtype)
        y_BGNK = jnp.einsum("bgns,bgsk->bgnk", p_BGNS, v_BGTK[:, :, :last])
        outputs.append(_by_position(y_BGNK, last - first))
        kept.append(p_BGNS)
    y_BTHK = jnp.concatenate(outputs, 1)
    return y_BTHK, (q_BTHK, k_BTGK, v_BTGK, kept, y_BTHK)


def _lean_backward(window: int | None, residuals: tuple, dy_BTHK: Array) -> tuple[Array, Array, Array, None]:
    q_BTHK, k_BTGK, v_BTGK, kept, y_BTHK = residuals
    groups, dtype = k_BTGK.shape[2], q_BTHK.dtype
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    row_sums_BTH1 = (dy_BTHK.astype(jnp.float32) * y_BTHK.astype(jnp.float32)).sum(-1, keepdims=True)
    dq, dk, dv = [], [], []
    for (first, last), p_BGNS in zip(_query_blocks(q_BTHK.shape[1]), kept, strict=True):
        q_BGNK, dy_BGNK, row_sums_BGN1 = (_by_group(x[:, first:last], groups) for x in (q_BTHK, dy_BTHK, row_sums_BTH1))
        dp_BGNS = _product("bgnk,bgsk->bgns", dy_BGNK, v_BGTK[:, :, :last])
        ds_BGNS = (p_BGNS * (dp_BGNS - row_sums_BGN1) * _scale(q_BTHK)).astype(dtype)
        dq_BGNK = jnp.einsum("bgns,bgsk->bgnk", ds_BGNS, k_BGTK[:, :, :last])
        dq.append(_by_position(dq_BGNK, last - first))
        dk.append(jnp.einsum("bgns,bgnk->bsgk", ds_BGNS, q_BGNK))
        dv.append(jnp.einsum("bgns,bgnk->bsgk", p_BGNS, dy_BGNK))
    return jnp.concatenate(dq, 1), _sum_of_prefixes(dk), _sum_of_prefixes(dv), None


lean_attention.defvjp(_lean_forward, _lean_backward)


def splash_attention(
    q_BTHK: Array,
    k_BTGK: Array,
    v_BTGK: Array,
    segments_BT: Array | None,
    window: int | None,
    *,
    interpret: bool = False,
) -> Float[Array, "B T H K"]:
    """The TPU's flash attention for sparse masks, from JAX's own Pallas kernels; one row of the batch after another.

    With `interpret` the kernel runs anywhere, slowly. The positions must be a multiple of 128.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    t, h = q_BTHK.shape[1], q_BTHK.shape[2]
    mask = splash.CausalMask((t, t)) if window is None else splash.LocalMask((t, t), (window - 1, 0), 0)
    block = next(size for size in (512, 256, 128) if t % size == 0)
    blocks = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * h), block_sizes=blocks, interpret=interpret
    )

    def attend(q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, segments_BT: Array | None) -> Array:
        segments = None if segments_BT is None else splash.SegmentIds(segments_BT, segments_BT)
        scaled_BTHK = q_BTHK * jnp.asarray(_scale(q_BTHK), q_BTHK.dtype)
        q, k, v = (x.swapaxes(1, 2) for x in (scaled_BTHK, k_BTGK, v_BTGK))
        return jax.vmap(kernel)(q, k, v, segments).swapaxes(1, 2)

    return on_own_rows(attend, q_BTHK, k_BTGK, v_BTGK, segments_BT)


def _query_blocks(t: int) -> list[tuple[int, int]]:
    """Where each block of queries begins and ends."""
    size = max(LEAST_QUERIES, -(-t // MOST_BLOCKS))
    return [(first, min(first + size, t)) for first in range(0, t, size)]


def _visible(first: int, last: int, segments_BT: Array | None, window: int | None) -> Bool[Array, "#B 1 1 T S"]:
    """Which of the first `last` positions each of the queries from `first` to `last` sees."""
    distance_TS = np.arange(first, last)[:, None] - np.arange(last)
    seen_TS = (distance_TS >= 0) if window is None else (distance_TS >= 0) & (distance_TS < window)
    if segments_BT is None:
        return jnp.asarray(seen_TS)[None, None, None]
    same_BTS = segments_BT[:, first:last, None] == segments_BT[:, None, :last]
    return (same_BTS & seen_TS)[:, None, None]


def _product(equation: str, left: Array, right: Array) -> Float[Array, ...]:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _scale(q_BTHK: Array) -> float:
    return float(q_BTHK.shape[-1] ** -0.5)


def _by_group(x_BTHK: Array, groups: int) -> Float[Array, "B G N K"]:
    b, t, h, k = x_BTHK.shape
    return x_BTHK.reshape(b, t, groups, h // groups, k).transpose(0, 2, 3, 1, 4).reshape(b, groups, -1, k)


def _by_position(x_BGNK: Array, t: int) -> Float[Array, "B T H K"]:
    b, g, n, k = x_BGNK.shape
    return x_BGNK.reshape(b, g, n // t, t, k).transpose(0, 3, 1, 2, 4).reshape(b, t, -1, k)


def _sum_of_prefixes(parts: list[Array]) -> Float[Array, "B S G K"]:
    """The sum of arrays of which each has the first so many positions, the last all of them."""
    total = parts[-1]
    for part in parts[:-1]:
        total = total.at[:, : part.shape[1]].add(part)
    return total
