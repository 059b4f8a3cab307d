"""Write a target from a source (Sutskever et al. 2014). B examples, S positions of sources, T of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.encoder_decoder import EncoderDecoderModel
from trainkit.models.loss import blocked_cross_entropy_and_correct
from trainkit.models.probe import mark_tokens
from trainkit.recipe.sections.task import Seq2Seq
from trainkit.tasks.causal_lm import smoothing_difference
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """Cross-entropy of the tokens of targets, and the share of them that is predicted correctly."""

    spec: Seq2Seq
    end_of_text: int
    """The token before every target, where the model names no other."""

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: EncoderDecoderModel, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn.

        The batch has `tokens` and `weights`, (B, 2, T), and `filled`, (B, 2): the source and the target. The decoder
        reads the target one position later, after its start token, as in transformers' collator for seq2seq.
        """
        source_BT, target_BT = (batch["tokens"][:, side].astype(jnp.int32) for side in (0, 1))
        inside_BT = jnp.arange(source_BT.shape[1]) < batch["filled"][:, :1]
        segments_BT = inside_BT.astype(jnp.int32)
        memory_BTD = model.encode(source_BT, segments_BT)
        start = self.end_of_text if model.decoder_start is None else model.decoder_start
        weights_BT = batch["weights"][:, 1]
        with mark_tokens(weights_BT > 0):
            hidden_BTD = model.decode(shifted_right(target_BT, start), memory_BTD, segments_BT)
        states_BTE, unembedding_VE = model.prediction_states(hidden_BTD), model.output_matrix()
        total, weight, correct = blocked_cross_entropy_and_correct(states_BTE, unembedding_VE, target_BT, weights_BT)
        if self.spec.label_smoothing:
            apart = smoothing_difference(states_BTE, unembedding_VE, target_BT, weights_BT)
            # this changes the gradient and not the value, so the logged loss is the cross-entropy
            total = total + self.spec.label_smoothing * (apart - jax.lax.stop_gradient(apart))
        return Loss(total, weight, {"accuracy": Ratio(correct, weight)})

    def report(self, *, loss: float, metrics: Mapping[str, Statistic], targets: int, bytes: int) -> dict[str, float]:
        """Return the loss in nats per token of the targets, its exponential, and the accuracy."""
        shown = super().report(loss=loss, metrics=metrics, targets=targets, bytes=bytes)
        return {**shown, "perplexity": math.exp(min(loss, 700.0))}


def shifted_right(tokens_BT: Int[Array, "B T"], start: int) -> Int[Array, "B T"]:
    """Return the tokens one position later, after a start token; the last one is left out."""
    return jnp.pad(tokens_BT[:, :-1], ((0, 0), (1, 0)), constant_values=start)


def build(spec: Seq2Seq, tokenizer: LoadedTokenizer | None) -> Seq2SeqTask:
    """Return the task; without a tokenizer, one of the same shapes, which a plan is made with."""
    return Seq2SeqTask(spec, end_of_text=0 if tokenizer is None else tokenizer.end_of_text)
