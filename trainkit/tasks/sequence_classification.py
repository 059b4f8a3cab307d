"""Tell the class of a text, or of a pair of texts. B texts, T positions, C classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.task import SequenceClassification
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, segments_of


@dataclass(frozen=True)
class SequenceClassificationTask(Task):
    """Cross-entropy of the classes, and the share of the texts whose class has the largest score."""

    spec: SequenceClassification

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the sum of the class weights of the texts.

        The batch has `tokens` and `second`, (B, T), and `labels` and `filled`, (B,). A penalty of the model, such as of
        experts unevenly busy, is added to the gradient.
        """
        return self.predict(model, batch)[0]

    def predict(
        self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `Task.predict`: an item is a text; its `scores` are (B, C)."""
        tokens_BT, labels_B = batch["tokens"].astype(jnp.int32), batch["labels"]
        segments_BT = segments_of(batch, tokens_BT.shape[1])
        hidden_BTD, penalty = model.hidden_and_penalty(
            tokens_BT, segments_BT=segments_BT, types_BT=batch["second"].astype(jnp.int32)
        )
        scores_BC = model.scores(hidden_BTD, segments_BT)
        counted_B = ((labels_B >= 0) & (segments_BT > 0).any(1)).astype(jnp.float32)
        losses_B, weights_B = cross_entropy(scores_BC, labels_B, self.spec.class_weights)
        total, weight = (losses_B * weights_B * counted_B).sum(), (weights_B * counted_B).sum()
        predicted_B = scores_BC.argmax(-1).astype(jnp.int32)
        correct = ((predicted_B == labels_B) * counted_B).sum()
        added = weight * (penalty - jax.lax.stop_gradient(penalty))
        loss = Loss(total + added, weight, {"accuracy": Ratio(correct, counted_B.sum())})
        return loss, {"label": labels_B, "predicted": predicted_B, "scores": scores_BC, "weights": counted_B}


def cross_entropy(
    scores: Float[Array, "*n C"], labels: Int[Array, "*n"], class_weights: tuple[float, ...] = ()
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Return the cross-entropy of each item, in nats, and how much it counts: the weight of its class, 1 where there
    are no weights. Where a label is -1 both are those of class 0."""
    labels = jnp.maximum(labels, 0)
    picked = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1)[..., 0]
    weights = jnp.asarray(class_weights, jnp.float32)[labels] if class_weights else jnp.ones(labels.shape, jnp.float32)
    return -picked, weights


def build(spec: SequenceClassification, tokenizer: LoadedTokenizer | None) -> SequenceClassificationTask:
    """Return the task."""
    return SequenceClassificationTask(spec)
