"""Predict tokens that are hidden from the model (BERT, Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.encoder import EncoderModel
from trainkit.models.loss import blocked_cross_entropy_and_correct
from trainkit.recipe.sections.task import MaskedLM
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, row_keys, segments_of

#: The seed of tokens that are chosen once for all epochs, and the number of the key for the lengths of spans.
STATIC, SPANS = 0x57A71C, 0x59A4
#: Share of spans that are longer than 0, 1, 2 … tokens: geometric with 0.2, and at most 10 (SpanBERT, section 3.1).
LONGER_THAN = (0.8 ** np.arange(10) - 0.8**10) / (1 - 0.8**10)


class MaskedTokens(NamedTuple):
    """A batch with some of its tokens hidden."""

    inputs_BT: Int[Array, "B T"]
    weights_BT: Float[Array, "B T"]
    """That of each token that was chosen; 0 of all others."""


@dataclass(frozen=True)
class MaskedLMTask(Task):
    """Cross-entropy of the tokens that were chosen, and the share of them that is predicted right."""

    spec: MaskedLM
    vocab_size: int
    """Random tokens have ids below it."""
    mask: int
    """The id of the mask token."""
    special: tuple[int, ...] = ()
    """Ids that are never chosen."""
    continuing: tuple[int, ...] = ()
    """Ids of tokens that continue a word, where whole words are chosen."""
    white: tuple[int, ...] = ()
    """Ids of tokens that end with white space: the next one begins a word all the same."""

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: EncoderModel, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> Loss:
        """See `Task.loss`. The batch has `tokens` and `weights`, (B, T), and `example`, (B,)."""
        return self.loss_of(model, batch, self.hide(batch, key))

    def hide(self, batch: Mapping[str, Array], key: PRNGKeyArray) -> MaskedTokens:
        """Return the batch as the model reads it in a step with this key."""
        key = jax.random.key(STATIC) if self.spec.static else key
        return self.choose(batch["tokens"].astype(jnp.int32), batch["weights"], row_keys(batch, key))

    def choose(self, tokens_BT: Array, weights_BT: Array, keys_B: PRNGKeyArray) -> MaskedTokens:
        """Return the tokens after hiding those that the keys, one per row, choose."""

        def draw(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
            length = tokens_BT.shape[1:]
            chosen, fate, other = jax.random.split(key, 3)
            others = jax.random.randint(other, length, 0, self.vocab_size)
            return jax.random.uniform(chosen, length), jax.random.uniform(fate, length), others

        chance_BT, fate_BT, others_BT = jax.vmap(draw)(keys_B)
        if self.spec.unit == "word":
            # the first token of a row begins a group, also where the row begins within a word
            after_white_BT = jnp.pad(_is_among(self.white, tokens_BT), ((0, 0), (1, 0)), constant_values=True)[:, :-1]
            chance_BT = _of_group(chance_BT, after_white_BT | ~_is_among(self.continuing, tokens_BT))
        covered_BT = chance_BT < self.spec.probability
        if self.spec.unit == "span":
            covered_BT = _cover(chance_BT < span_rate(self.spec.probability), keys_B)
            before_BT = jnp.pad(covered_BT, ((0, 0), (1, 0)))[:, :-1]
            fate_BT = _of_group(fate_BT, covered_BT & ~before_BT)
        chosen_BT = covered_BT & self._may_be_chosen(tokens_BT)
        replaced_BT = jnp.where(fate_BT < self.spec.masked + self.spec.random, others_BT, tokens_BT)
        replaced_BT = jnp.where(fate_BT < self.spec.masked, self.mask, replaced_BT)
        return MaskedTokens(jnp.where(chosen_BT & (weights_BT > 0), replaced_BT, tokens_BT), weights_BT * chosen_BT)

    def loss_of(self, model: EncoderModel, batch: Mapping[str, Array], masked: MaskedTokens) -> Loss:
        """Return the sums of a batch of which some tokens are hidden."""
        tokens_BT = batch["tokens"].astype(jnp.int32)
        hidden_BTD = model.hidden_states(
            masked.inputs_BT,
            positions_BT=batch.get("positions"),
            segments_BT=segments_of(batch, tokens_BT.shape[1]),
        )
        states_BTD, unembedding_VD = model.prediction_states(hidden_BTD), model.output_matrix()
        total, weight, correct = blocked_cross_entropy_and_correct(
            states_BTD, unembedding_VD, tokens_BT, masked.weights_BT
        )
        return Loss(total, weight, {"accuracy": Ratio(correct, weight)})

    def _may_be_chosen(self, tokens_BT: Array) -> Bool[Array, "B T"]:
        return ~_is_among(self.special, tokens_BT)


def span_rate(probability: float) -> float:
    """Return the probability that a span begins at a token, so that spans cover this share of all tokens."""
    longer = LONGER_THAN
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if 1 - np.prod(1 - rate * longer) < probability else (low, rate)
    return high


def _cover(begins_BT: Array, keys_B: PRNGKeyArray) -> Bool[Array, "B T"]:
    """Return the tokens of spans that begin at some tokens, whose lengths are drawn."""
    length = begins_BT.shape[1]
    draws_BT = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, SPANS), (length,)))(keys_B)
    covered_BT = begins_BT
    for more, share in enumerate(LONGER_THAN[1:], start=1):
        reaching_BT = begins_BT & (draws_BT < share)
        covered_BT |= jnp.pad(reaching_BT, ((0, 0), (more, 0)))[:, :length]
    return covered_BT


def _of_group(values_BT: Array, begins_BT: Array) -> Array:
    """Return the same value at all tokens of a group, where each group begins at a token of `begins_BT`."""
    return jnp.take_along_axis(values_BT, jnp.maximum(jnp.cumsum(begins_BT, axis=1) - 1, 0), axis=1)


def _is_among(ids: tuple[int, ...], tokens_BT: Array) -> Bool[Array, "B T"]:
    """Return which tokens have one of these ids."""
    if not ids:
        return jnp.zeros(tokens_BT.shape, bool)
    table_V = np.zeros(max(ids) + 1, bool)
    table_V[list(ids)] = True
    # ids beyond the table are not among them
    return jnp.asarray(table_V).at[tokens_BT].get(mode="fill", fill_value=False)


def build(spec: MaskedLM, tokenizer: LoadedTokenizer | None) -> MaskedLMTask:
    """Return the task; without a tokenizer, one of the same shapes, which a plan is made with."""
    if tokenizer is None:
        return MaskedLMTask(spec, vocab_size=1, mask=0)
    assert tokenizer.mask is not None, "checked before anything is tokenised: see `build.check_tokenizer`"
    special = {*tokenizer.special_tokens.values(), tokenizer.mask, tokenizer.end_of_text}
    continuing, white = (tokenizer.continuations, tokenizer.white) if spec.needs_words else ((), ())
    assert continuing is not None, "checked with the mask token"
    return MaskedLMTask(spec, tokenizer.vocab_size, tokenizer.mask, tuple(sorted(special)), continuing, white)
