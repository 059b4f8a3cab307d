"""Write a target from a source (Sutskever et al. 2014). B examples, S positions of sources, T of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.loss import blocked_cross_entropy_and_correct
from trainkit.models.master_weights import Weight
from trainkit.recipe.sections.task import Seq2Seq
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task


class EncoderDecoder(Protocol):
    """What the task asks of an encoder-decoder."""

    @property
    def decoder_start(self) -> int:
        """Return the token before every target."""

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
        """Return the states whose products with the rows of `unembedding` are the logits of the next tokens."""

    def unembedding(self) -> Float[Array, "V D"] | Weight: ...


@dataclass(frozen=True)
class Seq2SeqTask(Task):
    """Cross-entropy of the tokens of targets, and the share of them that is predicted right."""

    spec: Seq2Seq

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: EncoderDecoder, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn. The batch has `tokens` and `weights`, (B, 2, T), and `filled`, (B, 2): the
        source and the target.

        The decoder reads the target one position later, behind the model's `decoder_start`, as the collator for
        seq2seq of transformers writes it.
        """
        source_BT, target_BT = (batch["tokens"][:, side].astype(jnp.int32) for side in (0, 1))
        inside_BT = jnp.arange(source_BT.shape[1]) < batch["filled"][:, :1]
        segments_BT = inside_BT.astype(jnp.int32)
        memory_BTD = model.encode(source_BT, segments_BT)
        hidden_BTD = model.decode(shifted_right(target_BT, model.decoder_start), memory_BTD, segments_BT)
        total, weight, correct = blocked_cross_entropy_and_correct(
            hidden_BTD, model.unembedding(), target_BT, batch["weights"][:, 1]
        )
        return Loss(total, weight, {"accuracy": Ratio(correct, weight)})

    def report(self, *, loss: float, metrics: Mapping[str, Statistic], targets: int, bytes: int) -> dict[str, float]:
        """Return the loss in nats per token of the targets, its exponential, and the accuracy."""
        shown = super().report(loss=loss, metrics=metrics, targets=targets, bytes=bytes)
        return {**shown, "perplexity": math.exp(min(loss, 700.0))}


def shifted_right(tokens_BT: Int[Array, "B T"], start: int) -> Int[Array, "B T"]:
    """Return the tokens one position later, behind a start token; the last one is left out."""
    return jnp.pad(tokens_BT[:, :-1], ((0, 0), (1, 0)), constant_values=start)


def build(spec: Seq2Seq, tokenizer: LoadedTokenizer | None) -> Seq2SeqTask:
    """Return the task."""
    return Seq2SeqTask(spec)
