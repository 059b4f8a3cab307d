"""Score answers so that the better one of two has the larger score.

B pairs, T positions, N = B x 2; of the axis of 2, 0 is the chosen answer and 1 the rejected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.preference_tasks import Reward
from trainkit.tasks.preference import as_rows, difference
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, segments_of


@dataclass(frozen=True)
class RewardTask(Task):
    """The negative log-likelihood of the preferences (Bradley and Terry 1952), and how the scores rank the answers."""

    spec: Reward

    metrics: ClassVar[Mapping[str, Statistic]] = {
        "accuracy": Ratio.zero(),
        "margin": Ratio.zero(),
        "chosen_score": Ratio.zero(),
        "rejected_score": Ratio.zero(),
    }

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the number of pairs.

        The batch has `tokens`, (B, 2, T), `filled`, (B, 2), which is 0 in rows of padding, and where the documents have
        margins `labels`, (B,). A penalty of the model, such as of experts unevenly busy, is added to the gradient.
        """
        tokens_NT = as_rows(batch["tokens"]).astype(jnp.int32)
        segments_NT = segments_of({"filled": batch["filled"].reshape(-1)}, tokens_NT.shape[1])
        hidden_NTD, penalty = model.hidden_and_penalty(tokens_NT, segments_BT=segments_NT)
        scores_B2 = model.scores(hidden_NTD, segments_NT).reshape(-1, 2)
        counted_B = (batch["filled"] > 0).all(1).astype(jnp.float32)
        pairs, margins_B = counted_B.sum(), difference(scores_B2)
        # a row of padding has no number as its margin
        least_B = jnp.where(counted_B > 0, batch["labels"], 0) if "labels" in batch else 0.0
        losses_B = self.spec.centring * jnp.square(scores_B2.sum(1)) - jax.nn.log_sigmoid(margins_B - least_B)
        added = pairs * (penalty - jax.lax.stop_gradient(penalty))

        def mean(values_B: Array) -> Ratio:
            return Ratio((jax.lax.stop_gradient(values_B) * counted_B).sum(), pairs)

        measured: dict[str, Statistic] = {
            "accuracy": mean(margins_B > 0),
            "margin": mean(margins_B),
            "chosen_score": mean(scores_B2[:, 0]),
            "rejected_score": mean(scores_B2[:, 1]),
        }
        return Loss((losses_B * counted_B).sum() + added, pairs, measured)


def build(spec: Reward, tokenizer: LoadedTokenizer | None) -> RewardTask:
    """Return the task."""
    return RewardTask(spec)
