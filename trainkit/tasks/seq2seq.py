"""Write a target from a source (Sutskever et al. 2014). B examples, S positions of sources, T of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.loss import blocked_cross_entropy_and_correct
from trainkit.models.master_weights import Weight
from trainkit.recipe.sections.task import Seq2Seq
from trainkit.tasks.causal_lm import smoothing_difference
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task


class WritesTargets(Protocol):
    """What the task asks of an encoder-decoder."""

    @property
    def decoder_start(self) -> int | None:
        """Return the token before every target; None where it is the tokenizer's end of text."""

    def encode(
        self, tokens: Int[Array, "B S"], segments: Int[Array, "B S"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "B S D"]:
        """Return the memory of sources; positions of segment 0 are padding."""

    def decode(
        self,
        tokens: Int[Array, "B T"],
        memory: Float[Array, "B S D"],
        memory_segments: Int[Array, "B S"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the hidden states of tokens, each of which has seen the memory and the tokens before it."""

    def prediction_states(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
        """Return what the rows of `unembedding` are multiplied with to give logits of the next tokens."""

    def unembedding(self) -> Float[Array, "V D"] | Weight: ...


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """Cross-entropy of the tokens of targets, and the share of them that is predicted correctly."""

    spec: Seq2Seq
    end_of_text: int
    """The token before every target, where the model names no other."""

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: WritesTargets, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn. The batch has `tokens` and `weights`, (B, 2, T), and `filled`, (B, 2): the
        source and the target.

        The decoder reads the target one position later, after the token that it starts with, as the collator for
        seq2seq of transformers writes it.
        """
        source_BT, target_BT = (batch["tokens"][:, side].astype(jnp.int32) for side in (0, 1))
        inside_BT = jnp.arange(source_BT.shape[1]) < batch["filled"][:, :1]
        segments_BT = inside_BT.astype(jnp.int32)
        memory_BTD = model.encode(source_BT, segments_BT)
        start = self.end_of_text if model.decoder_start is None else model.decoder_start
        hidden_BTD = model.decode(shifted_right(target_BT, start), memory_BTD, segments_BT)
        states_BTE, unembedding_VE = model.prediction_states(hidden_BTD), model.unembedding()
        weights_BT = batch["weights"][:, 1]
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
