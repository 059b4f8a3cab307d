"""Predict each token from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from trainkit.models.build import LanguageModel
from trainkit.models.loss import blocked_cross_entropy


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
        targets_BT = batch["targets"].astype(jnp.int32)
        return blocked_cross_entropy(hidden_BTD, model.unembedding(), targets_BT, batch["weights"])

    def report(self, *, loss: float, tokens: int, bytes: int) -> dict[str, float]:
        """Loss in nats per token, its exponential, and bits per byte of the set's UTF-8 text where that is known.

        Bits per byte compares models of different tokenizers (Gao et al. 2020, The Pile, section 3.1).
        """
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return {**report, "bits_per_byte": loss / math.log(2) * tokens / bytes} if bytes else report
