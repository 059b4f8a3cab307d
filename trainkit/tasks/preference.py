"""Prefer one answer to another: losses of pairs of log-likelihoods.

B pairs, T positions; of the axis of 2, 0 is the chosen answer and 1 the rejected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.sequence_loss import sequence_log_likelihoods
from trainkit.models.stack import LanguageModel
from trainkit.recipe.sections.preference_tasks import Preference
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task


class Likelihoods(NamedTuple):
    """The log-likelihoods of the answers of some pairs."""

    sums_B2: Float[Array, "B 2"]
    """Log-likelihoods of the answers, in nats."""
    lengths_B2: Float[Array, "B 2"]
    """Tokens of the answers; 0 in rows of padding."""
    penalty: Float[Array, ""]
    """What the model wants smaller beside the loss, such as experts unevenly busy."""
    learned_B: Float[Array, " B"] | None = None
    """The mean log-likelihood of a token of the prompt and the chosen answer together, where it is asked for."""

    @property
    def counted_B(self) -> Float[Array, " B"]:
        """1 for each pair, 0 for a row of padding."""
        return (self.lengths_B2 > 0).all(1).astype(jnp.float32)


@dataclass(frozen=True)
class PreferenceTask(Task):
    """The loss that the spec names, and how the model ranks the answers."""

    spec: Preference

    metrics: ClassVar[Mapping[str, Statistic]] = {
        "reward_accuracy": Ratio.zero(),
        "reward_margin": Ratio.zero(),
        "chosen_reward": Ratio.zero(),
        "rejected_reward": Ratio.zero(),
        "chosen_log_likelihood": Ratio.zero(),
        "rejected_log_likelihood": Ratio.zero(),
    }

    def loss(self, model: LanguageModel, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the number of pairs.

        The batch has `tokens`, `targets` and `weights`, (B, 2, T), and `filled`, (B, 2); with a reference also
        `reference`, (B, 2), its log-likelihoods of the answers.
        """
        found = likelihoods(model, batch, of_prompts=self.spec.likelihood_of_prompt)
        losses_B, rewards_B2 = self.compare(found.sums_B2, found.lengths_B2, batch, found.learned_B)
        counted_B, pairs = found.counted_B, found.counted_B.sum()
        penalty = pairs * (found.penalty - jax.lax.stop_gradient(found.penalty))
        measured = self._measure(jax.lax.stop_gradient(rewards_B2), jax.lax.stop_gradient(found.sums_B2), counted_B)
        return Loss((losses_B * counted_B).sum() + penalty, pairs, measured)

    def reference(self, model: LanguageModel, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the log-likelihoods of the answers, (B, 2)."""
        return {"reference": likelihoods(model, batch).sums_B2}

    def compare(
        self,
        sums_B2: Float[Array, "B 2"],
        lengths_B2: Float[Array, "B 2"],
        batch: Mapping[str, Array],
        learned_B: Float[Array, " B"] | None = None,
    ) -> tuple[Float[Array, " B"], Float[Array, "B 2"]]:
        """Return the loss of each pair, and the rewards of its answers.

        Args:
            sums_B2: log-likelihoods of the answers, in nats.
            lengths_B2: tokens of the answers; 0 in rows of padding, whose losses are finite.
            batch: has `reference`, (B, 2), where the loss compares with one.
            learned_B: the mean log-likelihood that counts beside the preference; None for that of the chosen answer.
        """
        beta, loss, likelihood = self.spec.beta, self.spec.loss, self.spec.likelihood
        means_B2 = jnp.where(lengths_B2 > 0, sums_B2 / jnp.maximum(lengths_B2, 1), -1.0)
        learned_B = means_B2[:, 0] if learned_B is None else learned_B
        if loss in ("dpo", "robust"):
            rewards_B2 = beta * (sums_B2 - batch["reference"])
            if self.spec.per_token:
                rewards_B2 = rewards_B2 / jnp.maximum(lengths_B2, 1)
            margins_B = difference(rewards_B2)
            return (self._log_sigmoid if loss == "dpo" else self._robust)(margins_B), rewards_B2
        if loss == "ipo":
            ratios_B2 = sums_B2 - batch["reference"]
            apart_B = difference(ratios_B2 / jnp.maximum(lengths_B2, 1))
            return jnp.square(apart_B - 1 / (2 * beta)), beta * ratios_B2
        if loss == "simpo":
            rewards_B2 = beta * means_B2
            return self._log_sigmoid(difference(rewards_B2) - self.spec.margin), rewards_B2
        if loss == "cpo":
            rewards_B2 = beta * sums_B2
            return self._log_sigmoid(difference(rewards_B2)) - likelihood * learned_B, rewards_B2
        odds_B2 = means_B2 - log_1m_exp(means_B2)
        preferred_B = -beta * jax.nn.log_sigmoid(difference(odds_B2))
        return preferred_B - likelihood * learned_B, beta * means_B2

    def _log_sigmoid(self, margins_B: Float[Array, " B"]) -> Float[Array, " B"]:
        """Return the cross-entropy of the better answer, of which `label_smoothing` goes to the other one."""
        smoothing = self.spec.label_smoothing
        right_B, wrong_B = jax.nn.log_sigmoid(margins_B), jax.nn.log_sigmoid(-margins_B)
        return -(1 - smoothing) * right_B - smoothing * wrong_B

    def _robust(self, margins_B: Float[Array, " B"]) -> Float[Array, " B"]:
        """Return a loss whose mean over wrong labels, `label_smoothing` of them, is that of the right ones."""
        wrong = self.spec.label_smoothing
        right_B, flipped_B = jax.nn.log_sigmoid(margins_B), jax.nn.log_sigmoid(-margins_B)
        return (wrong * flipped_B - (1 - wrong) * right_B) / (1 - 2 * wrong)

    def _measure(self, rewards_B2: Array, sums_B2: Array, counted_B: Array) -> dict[str, Statistic]:
        pairs = counted_B.sum()

        def mean(values_B: Array) -> Ratio:
            return Ratio((values_B * counted_B).sum(), pairs)

        margins_B = difference(rewards_B2)
        return {
            "reward_accuracy": mean(margins_B > 0),
            "reward_margin": mean(margins_B),
            "chosen_reward": mean(rewards_B2[:, 0]),
            "rejected_reward": mean(rewards_B2[:, 1]),
            "chosen_log_likelihood": mean(sums_B2[:, 0]),
            "rejected_log_likelihood": mean(sums_B2[:, 1]),
        }


def likelihoods(model: LanguageModel, batch: Mapping[str, Array], *, of_prompts: bool = False) -> Likelihoods:
    """Return what the model makes of the answers of a batch, both answers of all pairs as rows of one batch; with
    `of_prompts` also of prompts with the chosen answer."""
    tokens_NT, targets_NT, weights_NT = (as_rows(batch[name]) for name in ("tokens", "targets", "weights"))
    filled_N = batch["filled"].reshape(-1)
    hidden_NTD, penalty = answer_states(model, tokens_NT, filled_N)
    sums_N = log_likelihoods(model, hidden_NTD, targets_NT, weights_NT)
    found = Likelihoods(sums_N.reshape(-1, 2), batch["weights"].sum(-1), penalty)
    if not of_prompts:
        return found
    chosen, filled_B = slice(0, None, 2), filled_N[::2]
    whole_BT = (jnp.arange(tokens_NT.shape[1]) < filled_B[:, None]).astype(jnp.float32)
    sums_B = log_likelihoods(model, hidden_NTD[chosen], targets_NT[chosen], whole_BT)
    return found._replace(learned_B=sums_B / jnp.maximum(filled_B, 1))


def answer_log_likelihoods(
    model: LanguageModel, tokens_NT: Array, targets_NT: Array, weights_NT: Array, filled_N: Array
) -> tuple[Float[Array, " N"], Float[Array, ""]]:
    """Return the log-likelihood of each row's answer in nats, and the model's auxiliary loss."""
    hidden_NTD, penalty = answer_states(model, tokens_NT, filled_N)
    return log_likelihoods(model, hidden_NTD, targets_NT, weights_NT), penalty


def answer_states(
    model: LanguageModel, tokens_NT: Array, filled_N: Array
) -> tuple[Float[Array, "N T D"], Float[Array, ""]]:
    """Return the hidden states of rows, and the model's auxiliary loss."""
    counted_NT = jnp.arange(tokens_NT.shape[1]) < filled_N[:, None]
    return model.hidden_and_penalty(tokens_NT.astype(jnp.int32), counted_BT=counted_NT)


def log_likelihoods(model: LanguageModel, hidden_NTD: Array, targets_NT: Array, weights_NT: Array) -> Array:
    """Return the weighted log-likelihood of each row's targets in nats, (N,)."""
    return sequence_log_likelihoods(
        hidden_NTD, model.output_matrix(), targets_NT.astype(jnp.int32), weights_NT, softcap=model.final_softcap
    )


def difference(values_B2: Float[Array, "B 2"]) -> Float[Array, " B"]:
    """Return by how much the chosen answer's value is larger."""
    return values_B2[:, 0] - values_B2[:, 1]


def log_1m_exp(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return log(1 - exp(x)) for x < 0, without cancellation at either end (Mächler 2012)."""
    x = jnp.minimum(x, -1e-7)
    near = x > -0.6931472
    # both branches get a number in their domain, because an infinite gradient of the other branch would become NaN
    close = jnp.log(-jnp.expm1(jnp.where(near, x, -1.0)))
    return jnp.where(near, close, jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))


def as_rows(array_B2T: Array) -> Array:
    """Return both sequences of all pairs as rows of one batch, (B x 2, T)."""
    return array_B2T.reshape(-1, array_B2T.shape[-1])


def build(spec: Preference, tokenizer: LoadedTokenizer | None) -> PreferenceTask:
    """Return the task."""
    return PreferenceTask(spec)
