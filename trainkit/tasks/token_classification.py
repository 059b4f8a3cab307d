"""Predict the class of tokens, such as the first of each word. B texts, T positions, C classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.classification_tasks import TokenClassification
from trainkit.tasks.sequence_classification import cross_entropy
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, segments_of


@dataclass(frozen=True)
class TokenClassificationTask(Task):
    """Cross-entropy of the classes of labelled tokens, and the share of them whose class has the largest score."""

    spec: TokenClassification

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the sum of the class weights of the labelled tokens.

        The batch has `tokens`, `second` and `labels`, (B, T), and `filled` or `segments` and `positions`.
        """
        return self.predict(model, batch)[0]

    def predict(
        self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `Task.predict`: an item is a position, so that `label` is (B x T,) and `scores` (B x T, C)."""
        tokens_BT, labels_BT = batch["tokens"].astype(jnp.int32), batch["labels"]
        segments_BT = segments_of(batch, tokens_BT.shape[1])
        hidden_BTD, penalty = model.hidden_and_penalty(
            tokens_BT,
            positions_BT=batch.get("positions"),
            segments_BT=segments_BT,
            types_BT=batch["second"].astype(jnp.int32),
        )
        scores_BTC = model.scores(hidden_BTD, segments_BT)
        counted_BT = (labels_BT >= 0).astype(jnp.float32)
        losses_BT, weights_BT = cross_entropy(scores_BTC, labels_BT, self.spec.class_weights, self.spec.label_smoothing)
        total, weight = (losses_BT * counted_BT).sum(), (weights_BT * counted_BT).sum()
        predicted_BT = scores_BTC.argmax(-1).astype(jnp.int32)
        correct = ((predicted_BT == labels_BT) * counted_BT).sum()
        added = weight * (penalty - jax.lax.stop_gradient(penalty))
        loss = Loss(total + added, weight, {"accuracy": Ratio(correct, counted_BT.sum())})
        # segments count up along a row
        last_BT = jax.lax.cummax(jnp.where(labels_BT >= 0, segments_BT, 0), axis=1)
        begins_BT = (labels_BT >= 0) & (segments_BT > jnp.pad(last_BT[:, :-1], ((0, 0), (1, 0))))
        found = {"begins": begins_BT, "label": labels_BT, "predicted": predicted_BT, "weights": counted_BT}
        flat = {name: array_BT.reshape(-1) for name, array_BT in found.items()}
        return loss, flat | {"scores": scores_BTC.reshape(-1, scores_BTC.shape[-1])}


def build(spec: TokenClassification, tokenizer: LoadedTokenizer | None) -> TokenClassificationTask:
    """Return the task."""
    return TokenClassificationTask(spec)
