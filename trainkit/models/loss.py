"""Cross-entropy against a vocabulary, in blocks: the logits of all positions are never there at once.

Shapes: B batch, T positions, C positions of a block, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainkit.parallel.rows import on_own_rows
from trainkit.recipe.model import positions_in_block

Sums = TypeVar("Sums")


def blocked_cross_entropy(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"],
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
    *,
    block: int | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weight x negative log-likelihood of the target in nats, sum of weights), both float32.

    Logits and softmax are float32, and there are those of `block` positions of each row at most (None: chosen by
    `recipe.model.positions_in_block`). Where gradients are wanted they are made in the forward pass, block by block,
    so that no logit is computed twice (cf. Wijmans et al. 2024); where not, they are not made. Each device goes through
    its own rows, and the gradient of the unembedding is summed over the devices once, at the end.
    """
    weights_BT = weights_BT.astype(jnp.float32)

    def total(hidden_BTD: Array, unembedding_VD: Array, targets_BT: Array, weights_BT: Array) -> Array:
        b, t, d = hidden_BTD.shape
        size = block or positions_in_block(rows=b, positions=t, hidden=d, vocab_size=unembedding_VD.shape[0])
        return _weighted_sum(hidden_BTD, unembedding_VD, targets_BT, weights_BT, size)[None]

    totals = on_own_rows(total, hidden_BTD, unembedding_VD, targets_BT, weights_BT, whole=(1,))
    return totals.sum(), weights_BT.sum()


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted_sum(
    hidden_BTD: Array, unembedding_VD: Array, targets_BT: Array, weights_BT: Array, block: int
) -> Float[Array, ""]:
    def add(total: Array, start: Array, x_BCD: Array, targets_BC: Array, weights_BC: Array) -> Array:
        losses_BC, _ = _losses(x_BCD, unembedding_VD, targets_BC)
        return total + (losses_BC * weights_BC).sum()

    return _over_blocks(add, jnp.float32(0), hidden_BTD, targets_BT, weights_BT, block)


def _forward(
    hidden_BTD: Array, unembedding_VD: Array, targets_BT: Array, weights_BT: Array, block: int
) -> tuple[Array, tuple[Array, Array, Array]]:
    # float16 has no room for gradients that have not been multiplied by the scale of the loss yet
    kept = jnp.float32 if hidden_BTD.dtype == jnp.float16 else hidden_BTD.dtype

    def add(sums: tuple, start: Array, x_BCD: Array, targets_BC: Array, weights_BC: Array) -> tuple:
        total, dx_BTD, dw_VD, losses_BT = sums
        losses_BC, gradients = _losses(x_BCD, unembedding_VD, targets_BC)
        dlogits_BCV = (gradients() * weights_BC[..., None]).astype(x_BCD.dtype)
        dx_BCD = jnp.einsum("bcv,vd->bcd", dlogits_BCV, unembedding_VD, preferred_element_type=kept)
        dw_VD += jnp.einsum("bcv,bcd->vd", dlogits_BCV, x_BCD, preferred_element_type=jnp.float32)
        return (
            total + (losses_BC * weights_BC).sum(),
            jax.lax.dynamic_update_slice_in_dim(dx_BTD, dx_BCD, start, axis=1),
            dw_VD,
            jax.lax.dynamic_update_slice_in_dim(losses_BT, losses_BC, start, axis=1),
        )

    b, t, d = hidden_BTD.shape
    padded = -(-t // block) * block
    sums = (
        jnp.float32(0),
        jnp.zeros((b, padded, d), kept),
        jnp.zeros(unembedding_VD.shape, jnp.float32),
        jnp.zeros((b, padded), jnp.float32),
    )
    total, dx_BTD, dw_VD, losses_BT = _over_blocks(add, sums, hidden_BTD, targets_BT, weights_BT, block)
    return total, (dx_BTD[:, :t], dw_VD.astype(unembedding_VD.dtype), losses_BT[:, :t])


def _backward(block: int, residuals: tuple[Array, Array, Array], dtotal: Array) -> tuple:
    dx_BTD, dw_VD, losses_BT = residuals
    dtype = dw_VD.dtype
    return (dx_BTD * dtotal).astype(dtype), (dw_VD * dtotal).astype(dtype), None, losses_BT * dtotal


_weighted_sum.defvjp(_forward, _backward)


def _losses(
    x_BCD: Array, unembedding_VD: Array, targets_BC: Array
) -> tuple[Float[Array, "B C"], Callable[[], Float[Array, "B C V"]]]:
    """Negative log-likelihoods, and how to make their gradients with respect to the logits."""
    logits_BCV = jnp.einsum("bcd,vd->bcv", x_BCD, unembedding_VD, preferred_element_type=jnp.float32)
    top_BC1 = logits_BCV.max(-1, keepdims=True)
    exp_BCV = jnp.exp(logits_BCV - top_BC1)
    sum_BC1 = exp_BCV.sum(-1, keepdims=True)
    hit_BCV = jnp.arange(unembedding_VD.shape[0]) == targets_BC[..., None]
    target_BC = jnp.where(hit_BCV, logits_BCV, 0).sum(-1)
    losses_BC = jnp.log(sum_BC1[..., 0]) + top_BC1[..., 0] - target_BC
    return losses_BC, lambda: exp_BCV * (1 / sum_BC1) - hit_BCV


def _over_blocks(
    add: Callable[[Sums, Array, Array, Array, Array], Sums],
    sums: Sums,
    hidden_BTD: Array,
    targets_BT: Array,
    weights_BT: Array,
    block: int,
) -> Sums:
    """Fold `add(sums, start, x, targets, weights)` over blocks of positions, the last filled up with weight 0."""
    t = hidden_BTD.shape[1]
    blocks = -(-t // block)
    if rest := blocks * block - t:
        hidden_BTD = jnp.pad(hidden_BTD, ((0, 0), (0, rest), (0, 0)))
        targets_BT, weights_BT = (jnp.pad(a, ((0, 0), (0, rest))) for a in (targets_BT, weights_BT))

    def one(sums: Sums, start: Array) -> tuple[Sums, None]:
        parts = (jax.lax.dynamic_slice_in_dim(a, start, block, axis=1) for a in (hidden_BTD, targets_BT, weights_BT))
        return add(sums, start, *parts), None

    if blocks == 1:
        return one(sums, jnp.int32(0))[0]
    return jax.lax.scan(one, sums, jnp.arange(blocks, dtype=jnp.int32) * block)[0]
