"""Attention, causal or bidirectional, by the implementation that `parallel.devices.choose_attention` names.

Shapes: B batch, T positions, S positions looked at, H query heads, G heads of keys and values, each shared by H / G
query heads (Ainslie et al. 2023), N = T x H / G queries of one such group, K width of a head, L layers.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, TypeAlias, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trainkit.models import blockwise_attention, probe
from trainkit.models.dropout import NO_DROPOUT, Dropout
from trainkit.parallel.devices import AttentionName
from trainkit.parallel.mesh import on_own_rows

Window: TypeAlias = Int[Array, ""] | int | None
#: The implementations that need windows to be constants. Others take them as arrays, and a scan over layers is shorter.
KERNELS: tuple[AttentionName, ...] = ("cudnn", "splash", "pallas")


class KeyValues(NamedTuple):
    """Keys and values of the positions seen so far, of one layer or, stacked, of all."""

    k_BSGK: Float[Array, "*L B S G K"]
    v_BSGK: Float[Array, "*L B S G K"]


class AttentionSpec(NamedTuple):
    """Which positions attention sees, and how it scores them."""

    window: Window = None
    """How many positions each position sees, with its own (Beltagy et al. 2020), and as many ahead if attention is not
    causal; 0 or less is no window. A scalar array where layers of one scan have different windows."""
    softcap: float | None = None
    """Bounds the scores (Gemma Team 2024)."""
    scale: float | None = None
    """Stands for 1 / sqrt(K)."""
    slopes_H: Float[Array, " H"] | None = None
    """What each position loses for each step of its distance (Press et al. 2022); slopes get no gradient."""
    causal: bool = True
    """Whether a position sees only itself and those before it; else it sees its whole segment (Devlin et al. 2019)."""
    dropout: Dropout = NO_DROPOUT
    """Of the probabilities."""

    def rule(self, q_BTHK: Float[Array, "B T H K"]) -> tuple[blockwise_attention.Rule, Array | None]:
        """Return the part known when compiling, and the window if it is an array, a scalar for each layer of a scan;
        else None."""
        known, window = (self.window, None) if isinstance(self.window, int) else (None, self.window)
        scale = blockwise_attention.default_scale(q_BTHK) if self.scale is None else self.scale
        return blockwise_attention.Rule(scale, self.softcap, known if known and known > 0 else None), window


#: Attention to all earlier positions.
CAUSAL = AttentionSpec()


def attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    positions_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"] | None,
    cache: KeyValues | None,
    *,
    implementation: AttentionName,
    spec: AttentionSpec,
) -> tuple[Float[Array, "B T H K"], KeyValues | None]:
    """Return attention of these positions to each other or, with a cache, to all of it after adding them; and the
    cache."""
    if cache is None:
        return causal_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, implementation=implementation, spec=spec), None
    return cached_attention(q_BTHK, k_BTGK, v_BTGK, cache, positions_BT, spec=spec)


def causal_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    segments_BT: Int[Array, "B T"] | None,
    *,
    implementation: AttentionName,
    spec: AttentionSpec = CAUSAL,
) -> Float[Array, "B T H K"]:
    """Return softmax attention to each position and those before it (Vaswani et al. 2017), within its segment if there
    are any.

    Soft caps and slopes are supported only by `blockwise` and `pallas`, windows that are arrays only by `blockwise`,
    which replaces `implementation` for them. Probabilities are dropped only where all of them are computed
    (`dropped_attention`). Padding is a segment like any other: every position sees at least itself, so all numbers stay
    finite. The softmax is in float32.
    """
    probe.report_attention(lambda: _entropy_and_top(q_BTHK, k_BTGK, segments_BT, spec))
    if spec.dropout.is_on:
        return dropped_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, spec)
    rule, window = spec.rule(q_BTHK)
    if implementation == "pallas":
        assert window is None, "the kernels need windows that are constants"
        return _by_kernel(q_BTHK, k_BTGK, v_BTGK, segments_BT, spec, rule)
    if not spec.causal:
        assert spec.softcap is None and spec.slopes_H is None
        return bidirectional_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, implementation, spec=spec)
    if spec.softcap is not None or spec.slopes_H is not None or window is not None:
        implementation = "blockwise"
    match implementation:
        case "blockwise":
            return blockwise_attention.blockwise_attention(
                q_BTHK, k_BTGK, v_BTGK, segments_BT, window, spec.slopes_H, rule
            )
        case "xla" | "cudnn":
            # without segments no mask is passed, so that the kernels skip the upper triangle
            same_B1TT = None if segments_BT is None else (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
            known = rule.window
            if implementation == "cudnn" and known is not None and known >= q_BTHK.shape[1]:
                known = None  # all earlier positions: the kernel without a window is the faster one
            return jax.nn.dot_product_attention(
                q_BTHK,
                k_BTGK,
                v_BTGK,
                mask=same_B1TT,
                scale=spec.scale,
                is_causal=True,
                local_window_size=None if known is None else (known - 1, 0),
                implementation=implementation,
            )
        case "splash":
            return splash_attention(q_BTHK, k_BTGK, v_BTGK, segments_BT, rule.window, scale=rule.scale)
        case _:
            assert_never(implementation)


def _by_kernel(
    q_BTHK: Array,
    k_BTGK: Array,
    v_BTGK: Array,
    segments_BT: Array | None,
    spec: AttentionSpec,
    rule: blockwise_attention.Rule,
) -> Float[Array, "B T H K"]:
    """Return attention by trainkit's kernels, one device's rows at a time; elsewhere than on GPUs they are
    interpreted, slowly."""
    from trainkit.models.flash_attention import flash_attention  # imports Pallas

    attend = partial(
        flash_attention,
        scale=rule.scale,
        softcap=rule.softcap,
        window=rule.window,
        causal=spec.causal,
        interpret=jax.default_backend() != "gpu",
    )
    return on_own_rows(attend, q_BTHK, k_BTGK, v_BTGK, segments_BT, spec.slopes_H, whole=(4,))


def _entropy_and_top(
    q_BTHK: Array, k_BTGK: Array, segments_BT: Array | None, spec: AttentionSpec
) -> tuple[Float[Array, "B H T"], Float[Array, "B H T"]]:
    rule, window = spec.rule(q_BTHK)
    return blockwise_attention.entropy_and_top(
        q_BTHK, k_BTGK, segments_BT, window, spec.slopes_H, rule, causal=spec.causal
    )


def bidirectional_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    segments_BT: Int[Array, "B T"] | None,
    implementation: AttentionName,
    *,
    spec: AttentionSpec,
) -> Float[Array, "B T H K"]:
    """Return attention in which every position sees all positions of its segment, or those within its window in either
    direction. The softmax is in float32."""
    mask_B1TT = None if segments_BT is None else (segments_BT[:, :, None] == segments_BT[:, None, :])[:, None]
    if spec.window is not None:
        t, (rule, window) = q_BTHK.shape[1], spec.rule(q_BTHK)
        near_11TT = blockwise_attention.visible(np.arange(t)[None], t, None, rule.window, window, causal=False)[:, 0]
        mask_B1TT = near_11TT if mask_B1TT is None else mask_B1TT & near_11TT
    kernel: Literal["xla", "cudnn"] = "cudnn" if implementation == "cudnn" else "xla"
    return jax.nn.dot_product_attention(q_BTHK, k_BTGK, v_BTGK, mask=mask_B1TT, scale=spec.scale, implementation=kernel)


def dropped_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    segments_BT: Int[Array, "B T"] | None,
    spec: AttentionSpec,
) -> Float[Array, "B T H K"]:
    """Return attention with dropout of its probabilities. No kernel supports that: all are computed at once."""
    (rule, window), t, groups = spec.rule(q_BTHK), q_BTHK.shape[1], k_BTGK.shape[2]
    q_BGNK, k_BGSK = blockwise_attention.by_group(q_BTHK, groups), k_BTGK.swapaxes(1, 2)
    same_BTS = None if segments_BT is None else segments_BT[:, :, None] == segments_BT[:, None, :]
    p_BGNS = blockwise_attention.probabilities(
        q_BGNK, k_BGSK, np.arange(t)[None], same_BTS, window, spec.slopes_H, rule, causal=spec.causal
    )
    dropped_BGNS = spec.dropout(p_BGNS).astype(q_BTHK.dtype)
    return blockwise_attention.by_position(jnp.einsum("bgns,bsgk->bgnk", dropped_BGNS, v_BTGK), t)


def cached_attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTGK: Float[Array, "B T G K"],
    cache: KeyValues,
    positions_BT: Int[Array, "B T"],
    *,
    spec: AttentionSpec = CAUSAL,
) -> tuple[Float[Array, "B T H K"], KeyValues]:
    """Return attention to all cached positions up to each query's own, after storing the new keys and values at
    `positions_BT`."""
    rows_B1 = jnp.arange(q_BTHK.shape[0])[:, None]
    cache = KeyValues(
        cache.k_BSGK.at[rows_B1, positions_BT].set(k_BTGK), cache.v_BSGK.at[rows_B1, positions_BT].set(v_BTGK)
    )
    rule, window = spec.rule(q_BTHK)
    q, k, v = q_BTHK, cache.k_BSGK, cache.v_BSGK
    if spec.softcap is not None or spec.slopes_H is not None:
        q_BGNK, k_BGSK = blockwise_attention.by_group(q, k.shape[2]), k.swapaxes(1, 2)
        p_BGNS = blockwise_attention.probabilities(
            q_BGNK, k_BGSK, positions_BT, None, window, spec.slopes_H, rule
        ).astype(q.dtype)
        return blockwise_attention.by_position(jnp.einsum("bgns,bsgk->bgnk", p_BGNS, v), q.shape[1]), cache
    visible_B1TS = blockwise_attention.visible(positions_BT, k.shape[1], None, rule.window, window)[:, 0]
    if q.dtype == jnp.float16:  # jax asks for a product summed in float32, which XLA lacks on CPUs for this dtype
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, mask=visible_B1TS, scale=spec.scale).astype(q_BTHK.dtype), cache


def splash_attention(
    q_BTHK: Array,
    k_BTGK: Array,
    v_BTGK: Array,
    segments_BT: Array | None,
    window: int | None,
    *,
    scale: float,
    interpret: bool = False,
) -> Float[Array, "B T H K"]:
    """Return attention by the TPU's flash kernel for sparse masks, from JAX's own Pallas kernels, one row after
    another.

    With `interpret` the kernel runs on any device, slowly. The positions must be a multiple of 128.
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
        splash.MultiHeadMask([mask] * h),
        block_sizes=blocks,
        interpret=interpret,
    )

    def attend(q_BTHK: Array, k_BTGK: Array, v_BTGK: Array, segments_BT: Array | None) -> Array:
        segments = None if segments_BT is None else splash.SegmentIds(segments_BT, segments_BT)
        scaled_BTHK = q_BTHK * jnp.asarray(scale, q_BTHK.dtype)
        q, k, v = (x.swapaxes(1, 2) for x in (scaled_BTHK, k_BTGK, v_BTGK))
        return jax.vmap(kernel)(q, k, v, segments).swapaxes(1, 2)

    return on_own_rows(attend, q_BTHK, k_BTGK, v_BTGK, segments_BT)
