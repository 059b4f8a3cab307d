"""Make good answers likelier and bad ones less likely (KTO, Ethayarajh et al. 2024).

B examples, T positions; of the axis of 2, 0 is the prompt with its answer and 1 the same prompt with another answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.models.stack import LanguageModel
from trainkit.recipe.sections.preference_tasks import Kto
from trainkit.tasks.preference import answer_log_likelihoods, likelihoods
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task

#: What a batch has of each of the two sequences.
PARTS = ("tokens", "targets", "weights", "filled")


@dataclass(frozen=True)
class KtoTask(Task):
    """The loss of equation 7 of the paper, and the rewards of good and of bad answers."""

    spec: Kto

    metrics: ClassVar[Mapping[str, Statistic]] = {
        "accuracy": Ratio.zero(),
        "kl": Ratio.zero(),
        "desirable_reward": Ratio.zero(),
        "undesirable_reward": Ratio.zero(),
        "desirable_log_likelihood": Ratio.zero(),
        "undesirable_log_likelihood": Ratio.zero(),
    }
    baselines: ClassVar[Mapping[str, Statistic]] = {"above_reference": Ratio.zero()}

    def measure_baselines(self, model: LanguageModel, batch: Mapping[str, Array]) -> dict[str, Ratio]:
        """Return how much likelier than the reference the model finds the other answers, on average."""
        other_B, _ = answer_log_likelihoods(model, *(batch[name][:, 1] for name in PARTS))
        counted_B = _counted(batch)
        return {"above_reference": Ratio(((other_B - batch["reference"][:, 1]) * counted_B).sum(), counted_B.sum())}

    def loss(self, model: LanguageModel, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the number of answers.

        The batch has `tokens`, `targets` and `weights`, (B, 2, T), `filled`, (B, 2), `labels`, (B,), and `reference`,
        (B, 2).
        """
        own_B, penalty = answer_log_likelihoods(model, *(batch[name][:, 0] for name in PARTS))
        counted_B = _counted(batch)
        answers, above = counted_B.sum(), cast(Ratio, batch["above_reference"])
        kl, good_B = jnp.maximum(above.sum / jnp.maximum(above.weight, 1), 0), batch["labels"] == 1
        ratios_B = own_B - batch["reference"][:, 0]
        losses_B = self.losses(ratios_B, kl, good_B)
        measured = self._measure(*jax.lax.stop_gradient((own_B, ratios_B)), kl, good_B, counted_B)
        added = answers * (penalty - jax.lax.stop_gradient(penalty))
        return Loss((losses_B * counted_B).sum() + added, answers, measured)

    def reference(self, model: LanguageModel, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the log-likelihoods of the answer and of the other answer, (B, 2)."""
        return {"reference": likelihoods(model, batch).sums_B2}

    def losses(self, ratios_B: Float[Array, " B"], kl: Float[Array, ""], good_B: Array) -> Float[Array, " B"]:
        """Return the loss of each answer, of its log-likelihood less that of the reference."""
        above_B = self.spec.beta * (ratios_B - kl)
        # 1 - sigmoid(x) = sigmoid(-x)
        good, bad = jax.nn.sigmoid(-above_B), jax.nn.sigmoid(above_B)
        return jnp.where(good_B, self.spec.desirable_weight * good, self.spec.undesirable_weight * bad)

    def _measure(
        self, own_B: Array, ratios_B: Array, kl: Array, good_B: Array, counted_B: Array
    ) -> dict[str, Statistic]:
        def mean(values_B: Array, of_B: Array) -> Ratio:
            weights_B = counted_B * of_B
            return Ratio((values_B * weights_B).sum(), weights_B.sum())

        rewards_B = self.spec.beta * ratios_B
        return {
            "accuracy": mean((ratios_B > kl) == good_B, jnp.ones_like(counted_B)),
            "kl": Ratio(kl * counted_B.sum(), counted_B.sum()),
            "desirable_reward": mean(rewards_B, good_B),
            "undesirable_reward": mean(rewards_B, ~good_B),
            "desirable_log_likelihood": mean(own_B, good_B),
            "undesirable_log_likelihood": mean(own_B, ~good_B),
        }


def _counted(batch: Mapping[str, Array]) -> Float[Array, " B"]:
    """Return 1 for each answer, 0 for a row of padding."""
    return (batch["filled"][:, 0] > 0).astype(jnp.float32)


def build(spec: Kto, tokenizer: LoadedTokenizer | None) -> KtoTask:
    """Return the task."""
    return KtoTask(spec)
