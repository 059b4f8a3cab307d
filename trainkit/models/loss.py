"""Cross-entropy against a vocabulary, in blocks: the logits of all tokens never exist at once.

Shapes: B batch, T positions, and those of `loss_blocks.py`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainkit.models import probe
from trainkit.models.loss_blocks import (
    LossBlocks,
    Softmax,
    block_starts,
    entries_at_once,
    over_entries,
    over_tokens,
    scan_blocks,
    target_logits,
)
from trainkit.models.master_weights import Weight
from trainkit.models.row_sums import add_rows
from trainkit.parallel.mesh import on_own_rows
from trainkit.recipe.families.sizes import tokens_in_block


def blocked_cross_entropy(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"] | Weight,
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
    *,
    block: int | None = None,
    entries: int | None = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return (sum of weight x negative log-likelihood of the target in nats, sum of weights), both float32.

    Logits and softmax are float32. Logits exist for at most `block` tokens and `entries` of the vocabulary at a time.
    For gradients they are used in the forward pass, so that no logit is computed twice (cf. Wijmans et al. 2024). Each
    device processes its own rows, and the gradient of the unembedding is summed over devices once, at the end.

    Args:
        block: None for `families.sizes.tokens_in_block`.
        entries: None to choose for the device.
        softcap: if given, a logit is softcap x tanh(product / softcap) (Gemma Team 2024).
        z_loss: changes only the gradient: to that of the first sum plus z_loss x the sum of weight x log² Z, where Z is
            the divisor of the softmax (Chowdhery et al. 2022, PaLM, section 5).
    """
    arrays = hidden_BTD, unembedding_VD, targets_BT, weights_BT
    total, weight, _ = _cross_entropy(
        *arrays, block=block, entries=entries, softcap=softcap, counts=False, z_loss=z_loss
    )
    return total, weight


def blocked_cross_entropy_and_correct(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"] | Weight,
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return the result of `blocked_cross_entropy`, and the sum of the weights of correctly predicted targets, float32.

    A target is predicted correctly if its logit is the largest (of equal ones, the one with the lowest id). This sum
    has no gradient.
    """
    return _cross_entropy(
        hidden_BTD, unembedding_VD, targets_BT, weights_BT, block=None, entries=None, softcap=None, counts=True
    )


def _cross_entropy(
    hidden_BTD: Array,
    unembedding_VD: Array | Weight,
    targets_BT: Array,
    weights_BT: Array,
    *,
    block: int | None,
    entries: int | None,
    softcap: float | None,
    counts: bool,
    z_loss: float = 0.0,
) -> tuple[Array, Array, Array]:
    weights_BT = weights_BT.astype(jnp.float32)
    probe.report_logits(lambda: largest_logit(hidden_BTD, Weight.of(unembedding_VD).rounded, weights_BT, softcap))

    def sums(hidden_BTD: Array, unembedding_VD: Weight, targets_BT: Array, weights_BT: Array) -> Array:
        tokens, (vocab, d) = weights_BT.size, unembedding_VD.shape
        size = min(
            block or tokens_in_block(tokens=tokens, hidden=d, vocab_size=vocab, platform=jax.default_backend()), tokens
        )
        at_once = min(entries or entries_at_once(size, vocab), vocab)
        settings = LossBlocks(size, at_once, softcap, hidden_BTD.dtype, counts, z_loss)
        rounded_VD, master_VD = unembedding_VD.rounded, unembedding_VD.master
        flat = targets_BT.reshape(tokens), weights_BT.reshape(tokens)
        found = _weighted_sums(hidden_BTD.reshape(tokens, d), rounded_VD, master_VD, *flat, settings)
        return jnp.stack(found)[None]

    by_device = on_own_rows(sums, hidden_BTD, Weight.of(unembedding_VD), targets_BT, weights_BT, whole=(1,))
    total, correct = by_device.sum(0)
    return total, weights_BT.sum(), correct


def largest_logit(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"],
    weights_BT: Float[Array, "B T"],
    softcap: float | None,
) -> Float[Array, ""]:
    """Return the largest logit of any entry, of the tokens whose weight is not 0, in float32."""

    def largest(hidden_BTD: Array, unembedding_VD: Array, weights_BT: Array) -> Array:
        tokens, (vocab, d) = weights_BT.size, unembedding_VD.shape
        size = min(tokens_in_block(tokens=tokens, hidden=d, vocab_size=vocab, platform=jax.default_backend()), tokens)
        settings = LossBlocks(size, min(entries_at_once(size, vocab), vocab), softcap, hidden_BTD.dtype, counts=False)

        def add(top: Array, _: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> Array:
            def see(top: Array, start: Array, logits_NU: Array, w_UD: Array) -> tuple[Array, None]:
                return jnp.maximum(top, jnp.where(weights_N[:, None] != 0, logits_NU, -jnp.inf).max()), None

            return over_entries(see, top, x_ND, unembedding_VD, settings)[0]

        flat = hidden_BTD.reshape(tokens, d), jnp.zeros(tokens, jnp.int32), weights_BT.reshape(tokens)
        return over_tokens(add, -jnp.float32(jnp.inf), *flat, settings)[None]

    return on_own_rows(largest, hidden_BTD, unembedding_VD, weights_BT, whole=(1,)).max()


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _weighted_sums(
    hidden_TD: Array, unembedding_VD: Array, master_VD: Array, targets_T: Array, weights_T: Array, settings: LossBlocks
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the weighted sum of the losses, and that of the correct predictions."""

    def add(sums: tuple, start: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> tuple:
        def see(seen: Softmax, start: Array, logits_NU: Array, w_UD: Array) -> tuple[Softmax, None]:
            return seen.add(logits_NU, start)[0], None

        seen, _ = over_entries(see, Softmax.empty(len(x_ND), settings), x_ND, unembedding_VD, settings)
        losses_N = seen.losses(target_logits(x_ND, unembedding_VD[targets_N], settings))
        total, correct = sums
        return total + (losses_N * weights_N).sum(), correct + seen.correct(targets_N, weights_N)

    return over_tokens(add, (jnp.float32(0), jnp.float32(0)), hidden_TD, targets_T, weights_T, settings)


def _forward(
    hidden_TD: Array, unembedding_VD: Array, master_VD: Array, targets_T: Array, weights_T: Array, settings: LossBlocks
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    dtype = settings.dtype
    # gradients that are not multiplied by the loss scale yet would underflow in float16
    kept = jnp.float32 if dtype == jnp.float16 else dtype

    def add(sums: tuple, start: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> tuple:
        total, correct, dx_TD, dw_VD, losses_T = sums

        def see(seen: tuple, start: Array, logits_NU: Array, w_UD: Array) -> tuple:
            softmax, dx_ND = seen
            softmax, shrink_N, exp_NU = softmax.add(logits_NU, start)
            exp_NU = settings.times_slope(exp_NU, logits_NU).astype(dtype)
            dx_ND = dx_ND * shrink_N[:, None] + jnp.matmul(exp_NU, w_UD, preferred_element_type=jnp.float32)
            return (softmax, dx_ND), (exp_NU, softmax.top_N)

        empty = Softmax.empty(len(x_ND), settings), jnp.zeros(x_ND.shape, jnp.float32)
        (softmax, dx_ND), (exp_JNU, top_JN) = over_entries(see, empty, x_ND, unembedding_VD, settings)
        target_ND = unembedding_VD[targets_N]
        target_N = target_logits(x_ND, target_ND, settings)
        losses_N = softmax.losses(target_N)
        dtarget_N = settings.times_slope(-weights_N, target_N)
        pulled_N = softmax.gradient_factors(weights_N, settings)
        dx_ND = dx_ND * (pulled_N / softmax.sum_N)[:, None] + target_ND * dtarget_N[:, None]
        dw_VD = _add_unembedding(dw_VD, x_ND, pulled_N, softmax, exp_JNU, top_JN, settings)
        dw_VD = add_rows(dw_VD, targets_N, dtarget_N[:, None] * x_ND.astype(jnp.float32))
        return (
            total + (losses_N * weights_N).sum(),
            correct + softmax.correct(targets_N, weights_N),
            jax.lax.dynamic_update_slice_in_dim(dx_TD, dx_ND.astype(kept), start, axis=0),
            dw_VD,
            jax.lax.dynamic_update_slice_in_dim(losses_T, losses_N, start, axis=0),
        )

    tokens, d = hidden_TD.shape
    padded = -(-tokens // settings.tokens) * settings.tokens
    sums = (
        jnp.float32(0),
        jnp.float32(0),
        jnp.zeros((padded, d), kept),
        jnp.zeros(unembedding_VD.shape, jnp.float32),
        jnp.zeros(padded, jnp.float32),
    )
    total, correct, dx_TD, dw_VD, losses_T = over_tokens(add, sums, hidden_TD, targets_T, weights_T, settings)
    return (total, correct), (dx_TD[:tokens], dw_VD, losses_T[:tokens])


def _add_unembedding(
    dw_VD: Array,
    x_ND: Array,
    weights_N: Array,
    softmax: Softmax,
    exp_JNU: Array,
    top_JN: Array,
    settings: LossBlocks,
) -> Array:
    """Return the gradient of the unembedding after adding these tokens' sums of exponentials.

    An exponential, already multiplied by the slope of its logit, becomes a gradient by a factor of its token. The
    factor is applied to the hidden states, which are fewer numbers, divided by the largest factor so that few bits
    suffice.
    """
    starts = block_starts(dw_VD.shape[0], settings.entries)
    factors_JN = weights_N * jnp.exp(top_JN - softmax.top_N) / softmax.sum_N

    def add(dw_VD: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        start, exp_NU, factor_N = part
        largest = jnp.maximum(jnp.abs(factor_N).max(), jnp.finfo(jnp.float32).tiny)
        scaled_ND = (x_ND * (factor_N / largest)[:, None]).astype(x_ND.dtype)
        dw_UD = jnp.einsum("nu,nd->ud", exp_NU, scaled_ND, preferred_element_type=jnp.float32) * largest
        old_UD = jax.lax.dynamic_slice_in_dim(dw_VD, start, settings.entries)
        return jax.lax.dynamic_update_slice_in_dim(dw_VD, old_UD + dw_UD, start, axis=0), None

    return scan_blocks(add, dw_VD, (starts, exp_JNU, factors_JN))[0]


def _backward(settings: LossBlocks, residuals: tuple[Array, Array, Array], dsums: tuple[Array, Array]) -> tuple:
    dx_TD, dw_VD, losses_T = residuals
    dtotal, _ = dsums
    return (dx_TD * dtotal).astype(settings.dtype), None, dw_VD * dtotal, None, losses_T * dtotal


_weighted_sums.defvjp(_forward, _backward)
