"""Causal attention in plain matrix products, with every feature that a family needs.

Shapes as in `attention.py`; R query heads of one group.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from trainkit.models import probe

#: Queries in a block: keys beyond the last of them are neither multiplied nor kept.
LEAST_QUERIES, MOST_BLOCKS = 128, 8


class Rule(NamedTuple):
    """How scores are made of queries and keys, as far as the compiler knows it."""

    scale: float
    """What the products are multiplied with."""
    softcap: float | None
    """Scores are softcap x tanh(scores / softcap), before anything is added or masked (Gemma Team 2024)."""
    window: int | None
    """How many positions a query sees, its own included (Beltagy et al. 2020)."""


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def blockwise_attention(
    q_BTHK: Array,
    k_BTGK: Array,
    v_BTGK: Array,
    segments_BT: Array | None,
    window: Array | None,
    slopes_H: Array | None,
    rule: Rule,
) -> Float[Array, "B T H K"]:
    """Return attention computed with plain matrix products, with a hand-written backward pass.

    The probabilities are kept in the dtype of the input, so that the backward pass needs neither mask nor softmax. The
    sum over each row of probabilities x their gradients is computed from the output (Dao et al. 2022, appendix B.2).
    Queries are taken in blocks, each with the keys up to its last position only. Only with a soft cap are the scores
    computed again, because its slope does not follow from rounded probabilities.
    """
    return _blockwise_forward(q_BTHK, k_BTGK, v_BTGK, segments_BT, window, slopes_H, rule)[0]


def _blockwise_forward(
    q_BTHK: Array,
    k_BTGK: Array,
    v_BTGK: Array,
    segments_BT: Array | None,
    window: Array | None,
    slopes_H: Array | None,
    rule: Rule,
) -> tuple[Array, tuple]:
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    outputs, kept = [], []
    for first, last in _query_blocks(q_BTHK.shape[1]):
        q_BGNK = by_group(q_BTHK[:, first:last], k_BTGK.shape[2])
        places_1T = np.arange(first, last)[None]
        same_BTS = None if segments_BT is None else segments_BT[:, first:last, None] == segments_BT[:, None, :last]
        p_BGNS = probabilities(q_BGNK, k_BGTK[:, :, :last], places_1T, same_BTS, window, slopes_H, rule)
        p_BGNS = p_BGNS.astype(q_BTHK.dtype)
        y_BGNK = jnp.einsum("bgns,bgsk->bgnk", p_BGNS, v_BGTK[:, :, :last])
        outputs.append(by_position(y_BGNK, last - first))
        kept.append(p_BGNS)
    y_BTHK = jnp.concatenate(outputs, 1)
    return y_BTHK, (q_BTHK, k_BTGK, v_BTGK, kept, y_BTHK)


def _blockwise_backward(rule: Rule, residuals: tuple, dy_BTHK: Array) -> tuple[Array, Array, Array, None, None, None]:
    q_BTHK, k_BTGK, v_BTGK, kept, y_BTHK = residuals
    groups, dtype = k_BTGK.shape[2], q_BTHK.dtype
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    row_sums_BTH1 = (dy_BTHK.astype(jnp.float32) * y_BTHK.astype(jnp.float32)).sum(-1, keepdims=True)
    dq, dk, dv = [], [], []
    for (first, last), p_BGNS in zip(_query_blocks(q_BTHK.shape[1]), kept, strict=True):
        q_BGNK, dy_BGNK, row_sums_BGN1 = (by_group(x[:, first:last], groups) for x in (q_BTHK, dy_BTHK, row_sums_BTH1))
        dp_BGNS = _product("bgnk,bgsk->bgns", dy_BGNK, v_BGTK[:, :, :last])
        ds_BGNS = p_BGNS * (dp_BGNS - row_sums_BGN1) * rule.scale
        if rule.softcap is not None:
            ds_BGNS *= 1 - jnp.square(_scores(q_BGNK, k_BGTK[:, :, :last], rule) / rule.softcap)
        ds_BGNS = ds_BGNS.astype(dtype)
        dq_BGNK = jnp.einsum("bgns,bgsk->bgnk", ds_BGNS, k_BGTK[:, :, :last])
        dq.append(by_position(dq_BGNK, last - first))
        dk.append(_product("bgns,bgnk->bsgk", ds_BGNS, q_BGNK))
        dv.append(_product("bgns,bgnk->bsgk", p_BGNS, dy_BGNK))
    dk_BTGK, dv_BTGK = (_sum_of_prefixes(parts).astype(dtype) for parts in (dk, dv))
    return jnp.concatenate(dq, 1), dk_BTGK, dv_BTGK, None, None, None


blockwise_attention.defvjp(_blockwise_forward, _blockwise_backward)


def _query_blocks(t: int) -> list[tuple[int, int]]:
    """Return where each block of queries begins and ends."""
    size = max(LEAST_QUERIES, -(-t // MOST_BLOCKS))
    return [(first, min(first + size, t)) for first in range(0, t, size)]


def probabilities(
    q_BGNK: Array,
    k_BGSK: Array,
    places_BT: Array | np.ndarray,
    same_BTS: Array | None,
    window: Array | None,
    slopes_H: Array | None,
    rule: Rule,
    *,
    causal: bool = True,
) -> Float[Array, "B G N S"]:
    """Return the attention of the queries at `places_BT` (B may be 1) to each of the first S positions."""
    scores_BGNS = masked_scores(q_BGNK, k_BGSK, places_BT, same_BTS, window, slopes_H, rule, causal=causal)
    weights_BGNS = jnp.exp(scores_BGNS - scores_BGNS.max(-1, keepdims=True))
    return weights_BGNS / weights_BGNS.sum(-1, keepdims=True)


def masked_scores(
    q_BGNK: Array,
    k_BGSK: Array,
    places_BT: Array | np.ndarray,
    same_BTS: Array | None,
    window: Array | None,
    slopes_H: Array | None,
    rule: Rule,
    *,
    causal: bool = True,
) -> Float[Array, "B G N S"]:
    """Return the scores that `probabilities` come from: -1e30 where a query does not see a position."""
    b, g, n, s = (*q_BGNK.shape[:3], k_BGSK.shape[2])
    scores_BGRTS = _scores(q_BGNK, k_BGSK, rule).reshape(b, g, -1, places_BT.shape[1], s)
    if slopes_H is not None:
        distances_B11TS = (jnp.asarray(places_BT)[:, :, None] - jnp.arange(s))[:, None, None]
        scores_BGRTS -= slopes_H.astype(jnp.float32).reshape(g, -1, 1, 1) * distances_B11TS
    visible_B11TS = visible(places_BT, s, same_BTS, rule.window, window, causal=causal)
    return jnp.where(visible_B11TS, scores_BGRTS, -1e30).reshape(b, g, n, s)


def entropy_and_top(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    segments_BT: Array | None,
    window: Array | None,
    slopes_H: Array | None,
    rule: Rule,
    *,
    causal: bool,
) -> tuple[Float[Array, "B H T"], Float[Array, "B H T"]]:
    """Return the entropy of each query's probabilities, in nats, and its largest score, by blocks of queries."""
    (b, t, h, _), k_BGTK, found = q_BTHK.shape, k_BTGK.swapaxes(1, 2), []
    for first, last in _query_blocks(t):
        seen = last if causal else t
        q_BGNK, places_1T = by_group(q_BTHK[:, first:last], k_BTGK.shape[2]), np.arange(first, last)[None]
        same_BTS = None if segments_BT is None else segments_BT[:, first:last, None] == segments_BT[:, None, :seen]
        scores_BGNS = masked_scores(
            q_BGNK, k_BGTK[:, :, :seen], places_1T, same_BTS, window, slopes_H, rule, causal=causal
        )
        found.append(probe.entropy_and_top(scores_BGNS.reshape(b, h, last - first, seen)))
    entropy_BHT, top_BHT = (jnp.concatenate(parts, -1) for parts in zip(*found, strict=True))
    return entropy_BHT, top_BHT


def _scores(q_BGNK: Array, k_BGSK: Array, rule: Rule) -> Float[Array, "B G N S"]:
    scores_BGNS = _product("bgnk,bgsk->bgns", q_BGNK, k_BGSK) * rule.scale
    return scores_BGNS if rule.softcap is None else rule.softcap * jnp.tanh(scores_BGNS / rule.softcap)


def visible(
    places_BT: Array | np.ndarray,
    s: int,
    same_BTS: Array | None,
    known: int | None,
    window: Array | None,
    *,
    causal: bool = True,
) -> Bool[Array, "#B 1 1 T S"]:
    """Return which of the first `s` positions each query sees; computed by numpy, as a constant, if possible.

    If attention is not causal, windows reach as far forward as back.
    """
    distances_BTS = places_BT[:, :, None] - (np if window is None else jnp).arange(s)
    if not causal:
        distances_BTS = abs(distances_BTS)
    seen_BTS = (distances_BTS >= 0) if known is None else (distances_BTS >= 0) & (distances_BTS < known)
    if window is not None:
        seen_BTS = seen_BTS & ((distances_BTS < window) | (window <= 0))
    if same_BTS is not None:
        seen_BTS = same_BTS & seen_BTS
    return jnp.asarray(seen_BTS)[:, None, None]


def _product(equation: str, left: Array, right: Array) -> Float[Array, ...]:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def default_scale(q_BTHK: Array) -> float:
    """Return the usual factor of scores, 1 / sqrt(K)."""
    return float(q_BTHK.shape[-1] ** -0.5)


def by_group(x_BTHK: Array, groups: int) -> Float[Array, "B G N K"]:
    """Return queries in the order (group, position within the group's heads): N = T x H / G."""
    b, t, h, k = x_BTHK.shape
    return x_BTHK.reshape(b, t, groups, h // groups, k).transpose(0, 2, 3, 1, 4).reshape(b, groups, -1, k)


def by_position(x_BGNK: Array, t: int) -> Float[Array, "B T H K"]:
    """Return the inverse of `by_group`, for `t` positions."""
    b, g, n, k = x_BGNK.shape
    return x_BGNK.reshape(b, g, n // t, t, k).transpose(0, 3, 1, 2, 4).reshape(b, t, -1, k)


def _sum_of_prefixes(parts: list[Array]) -> Float[Array, "B S G K"]:
    """Return the sum of arrays that each cover the first positions, the last one all of them."""
    total = parts[-1]
    for part in parts[:-1]:
        total = total.at[:, : part.shape[1]].add(part)
    return total
