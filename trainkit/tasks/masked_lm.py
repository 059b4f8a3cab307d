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

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: EncoderModel, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> Loss:
        """See `Task.loss`. The batch has `tokens` and `weights`, (B, T), and `example`, (B,)."""
        masked = self.choose(batch["tokens"].astype(jnp.int32), batch["weights"], row_keys(batch, key))
        return self.loss_of(model, batch, masked)

    def choose(self, tokens_BT: Array, weights_BT: Array, keys_B: PRNGKeyArray) -> MaskedTokens:
        """Return the tokens with those hidden that the keys, one a row, choose."""

        def draw(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
            length = tokens_BT.shape[1:]
            chosen, fate, other = jax.random.split(key, 3)
            others = jax.random.randint(other, length, 0, self.vocab_size)
            return jax.random.uniform(chosen, length), jax.random.uniform(fate, length), others

        chance_BT, fate_BT, others_BT = jax.vmap(draw)(keys_B)
        chosen_BT = (chance_BT < self.spec.probability) & self._may_be_chosen(tokens_BT)
        replaced_BT = jnp.where(fate_BT < self.spec.masked + self.spec.random, others_BT, tokens_BT)
        replaced_BT = jnp.where(fate_BT < self.spec.masked, self.mask, replaced_BT)
        return MaskedTokens(jnp.where(chosen_BT & (weights_BT > 0), replaced_BT, tokens_BT), weights_BT * chosen_BT)

    def loss_of(self, model: EncoderModel, batch: Mapping[str, Array], masked: MaskedTokens) -> Loss:
        """Return the sums of a batch of which some tokens are hidden."""
        tokens_BT = batch["tokens"].astype(jnp.int32)
        hidden_BTD = model.hidden(
            masked.inputs_BT,
            positions_BT=batch.get("positions"),
            segments_BT=segments_of(batch, tokens_BT.shape[1]),
        )
        states_BTD, unembedding_VD = model.prediction_states(hidden_BTD), model.unembedding()
        total, weight, correct = blocked_cross_entropy_and_correct(
            states_BTD, unembedding_VD, tokens_BT, masked.weights_BT
        )
        return Loss(total, weight, {"accuracy": Ratio(correct, weight)})

    def _may_be_chosen(self, tokens_BT: Array) -> Bool[Array, "B T"]:
        if not self.special:
            return jnp.ones(tokens_BT.shape, bool)
        ordinary_V = np.ones(max(self.special) + 1, bool)
        ordinary_V[list(self.special)] = False
        # ids beyond the table are ordinary
        return jnp.asarray(ordinary_V).at[tokens_BT].get(mode="fill", fill_value=True)


def build(spec: MaskedLM, tokenizer: LoadedTokenizer | None) -> MaskedLMTask:
    """Return the task; without a tokenizer, one of the same shapes, which a plan is made with."""
    if tokenizer is None:
        return MaskedLMTask(spec, vocab_size=1, mask=0)
    assert tokenizer.mask is not None, "checked before anything is tokenised: see `build.check_tokenizer`"
    special = {*tokenizer.special_tokens.values(), tokenizer.mask, tokenizer.end_of_text}
    return MaskedLMTask(spec, tokenizer.vocab_size, tokenizer.mask, tuple(sorted(special)))
