"""Log-likelihoods of whole sequences, for losses that compare sequences. Shapes: see `loss.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainkit.models.loss import blocked_cross_entropy
from trainkit.models.loss_blocks import LossBlocks, Softmax, entries_at_once, over_entries, over_tokens, target_logits
from trainkit.models.master_weights import Weight
from trainkit.parallel.mesh import on_own_rows
from trainkit.recipe.families.sizes import tokens_in_block


def sequence_log_likelihoods(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"] | Weight,
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
    *,
    softcap: float | None = None,
) -> Float[Array, " B"]:
    """Return each row's sum of weight x log-likelihood of the target, in nats, float32.

    Logits are computed in the blocks of `blocked_cross_entropy`, never for all tokens at once. The gradient of a row's
    sum is known only after the forward pass, so the backward pass computes the logits again. `weights_BT` has no
    gradient.
    """
    weights_BT = jax.lax.stop_gradient(weights_BT.astype(jnp.float32))

    @jax.custom_vjp
    def likelihoods(hidden_BTD: Array, unembedding_VD: Weight) -> Array:
        return -_losses(hidden_BTD, unembedding_VD, targets_BT, weights_BT, softcap)

    def forward(hidden_BTD: Array, unembedding_VD: Weight) -> tuple[Array, tuple[Array, Weight]]:
        return likelihoods(hidden_BTD, unembedding_VD), (hidden_BTD, unembedding_VD)

    def backward(residuals: tuple[Array, Weight], slopes_B: Array) -> tuple[Array, Weight]:
        # the derivative of the sums, each times its slope, is that of a cross-entropy with other weights
        def total(hidden_BTD: Array, unembedding_VD: Weight) -> Array:
            weights = -weights_BT * slopes_B[:, None]
            return blocked_cross_entropy(hidden_BTD, unembedding_VD, targets_BT, weights, softcap=softcap)[0]

        hidden, unembedding = jax.grad(total, argnums=(0, 1))(*residuals)
        return hidden, unembedding

    likelihoods.defvjp(forward, backward)
    return likelihoods(hidden_BTD, Weight.of(unembedding_VD))


def _losses(
    hidden_BTD: Array, unembedding_VD: Weight, targets_BT: Array, weights_BT: Array, softcap: float | None
) -> Float[Array, " B"]:
    """Return each row's weighted sum of cross-entropies; each device goes through its own rows."""

    def sums(hidden_BTD: Array, unembedding_VD: Array, targets_BT: Array, weights_BT: Array) -> Array:
        vocab, d = unembedding_VD.shape
        tokens = weights_BT.size
        size = min(tokens_in_block(tokens=tokens, hidden=d, vocab_size=vocab, platform=jax.default_backend()), tokens)
        settings = LossBlocks(size, min(entries_at_once(size, vocab), vocab), softcap, hidden_BTD.dtype, counts=False)

        def add(losses_T: Array, start: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> Array:
            def see(seen: Softmax, start: Array, logits_NU: Array, w_UD: Array) -> tuple[Softmax, None]:
                return seen.add(logits_NU, start)[0], None

            seen, _ = over_entries(see, Softmax.empty(len(x_ND), settings), x_ND, unembedding_VD, settings)
            losses_N = seen.losses(target_logits(x_ND, unembedding_VD[targets_N], settings)) * weights_N
            return jax.lax.dynamic_update_slice_in_dim(losses_T, losses_N, start, axis=0)

        empty_T = jnp.zeros(-(-tokens // size) * size, jnp.float32)
        flat = targets_BT.reshape(tokens), weights_BT.reshape(tokens)
        losses_T = over_tokens(add, empty_T, hidden_BTD.reshape(tokens, d), *flat, settings)
        return losses_T[:tokens].reshape(weights_BT.shape).sum(-1)

    return on_own_rows(sums, hidden_BTD, unembedding_VD.rounded, targets_BT, weights_BT, whole=(1,))
