"""Predict each token from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.loss import blocked_cross_entropy
from trainkit.models.master_weights import Weight, exact, lookup
from trainkit.models.stack import LanguageModel
from trainkit.recipe.sections.task import NextTokens
from trainkit.tasks.statistics import Statistic
from trainkit.tasks.task import Loss, Task


@dataclass(frozen=True)
class CausalLMTask(Task):
    """Cross-entropy of the next tokens."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def loss(self, model: LanguageModel, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn. The batch has `tokens`, `targets` and `weights`, all (B, T).

        With `segments` and `positions`, a document neither sees its neighbours in the row nor knows its place in the
        row. Positions beyond `filled` are padding. The model's auxiliary loss, such as the balance of experts, is added
        to the gradient once for each token that counts, as `transformers` adds it to the mean loss. Label smoothing and
        z-loss are added to the gradient too.
        """
        packed = "segments" in batch
        tokens_BT, targets_BT = (batch[name].astype(jnp.int32) for name in ("tokens", "targets"))
        positions_BT, segments_BT = (batch[name] if packed else None for name in ("positions", "segments"))
        counted_BT = jnp.arange(tokens_BT.shape[1]) < batch["filled"][:, None] if "filled" in batch else None
        hidden_BTD, penalty = model.hidden_and_penalty(
            tokens_BT, positions_BT=positions_BT, segments_BT=segments_BT, counted_BT=counted_BT
        )
        total, weight = blocked_cross_entropy(
            hidden_BTD,
            model.output_matrix(),
            targets_BT,
            batch["weights"],
            softcap=model.final_softcap,
            z_loss=self.z_loss,
        )
        # this changes the gradient and not the value, so the logged loss is the cross-entropy
        total = total + weight * (penalty - jax.lax.stop_gradient(penalty))
        if self.label_smoothing:
            apart = smoothing_difference(hidden_BTD, model.output_matrix(), targets_BT, batch["weights"])
            total = total + self.label_smoothing * (apart - jax.lax.stop_gradient(apart))
        return Loss(total, weight)

    def report(
        self, *, loss: float, metrics: Mapping[str, Statistic] | None = None, targets: int, bytes: int
    ) -> dict[str, float]:
        """Return the loss in nats per target, its exponential, and, if known, bits per byte of the set's UTF-8 text.

        Bits per byte compares models with different tokenizers (Gao et al. 2020, The Pile, section 3.1).
        """
        report = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        return {**report, "bits_per_byte": loss / math.log(2) * targets / bytes} if bytes else report


def smoothing_difference(
    hidden_BTD: Float[Array, "B T D"], unembedding_VD: Array | Weight, targets_BT: Array, weights_BT: Array
) -> Float[Array, ""]:
    """Return how much the weighted sum of losses grows if every entry of the vocabulary is the target to the same
    extent, in nats.

    A token's loss is log Z less the logit of the target, and with smoothing log Z less the mean logit. The mean logit
    is the product with the mean row of the unembedding, so that no logits are computed.
    """
    targets_BTD, mean_D = lookup(unembedding_VD, targets_BT), exact(unembedding_VD).mean(0)
    of_targets_BT = jnp.einsum("btd,btd->bt", hidden_BTD, targets_BTD, preferred_element_type=jnp.float32)
    mean_BT = hidden_BTD.astype(jnp.float32) @ mean_D
    return ((of_targets_BT - mean_BT) * weights_BT).sum()


def build(spec: NextTokens, tokenizer: LoadedTokenizer | None) -> CausalLMTask:
    """Return the task."""
    return CausalLMTask(spec.label_smoothing, spec.z_loss)
