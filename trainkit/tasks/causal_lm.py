"""Predict each token from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainkit.models.build import LanguageModel


@dataclass(frozen=True)
class CausalLM:
    def loss(self, model: LanguageModel, batch: Mapping[str, Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """See `Task.loss`. The batch has `tokens`, `targets` and `weights`, all (B, T).

        Where it also has `segments` and `positions`, a document neither sees its neighbours in the row nor knows where
        in the row it stands.
        """
        packed = "segments" in batch
        hidden_BTD, _ = model.hidden(
            batch["tokens"].astype(jnp.int32),
            positions_BT=batch["positions"] if packed else None,
            segments_BT=batch["segments"] if packed else None,
        )
        losses_BT = cross_entropy(hidden_BTD, model.unembedding(), batch["targets"].astype(jnp.int32))
        weights_BT = batch["weights"].astype(jnp.float32)
        return (losses_BT * weights_BT).sum(), weights_BT.sum()

    def report(self, *, loss: float, tokens: int, bytes: int) -> dict[str, float]:
        """Loss in nats per token, its exponential, and bits per byte of the set's UTF-8 text where that is known.

        Bits per byte compares models of different tokenizers (Gao et al. 2020, The Pile, section 3.1).
        """
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return {**report, "bits_per_byte": loss / math.log(2) * tokens / bytes} if bytes else report


def cross_entropy(
    hidden_BTD: Float[Array, "B T D"], unembedding_DV: Float[Array, "D V"], targets_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Negative log-likelihood of each target in nats; logits in the compute dtype, the softmax in float32."""
    logits_BTV = jnp.einsum("btd,dv->btv", hidden_BTD, unembedding_DV, preferred_element_type=jnp.float32)
    target_logits_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - target_logits_BT
