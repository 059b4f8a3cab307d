"""Predict the class of a text or of a pair, several classes, or numbers. B texts, T positions, C classes or numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.classification_tasks import SequenceClassification
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, segments_of


@dataclass(frozen=True)
class SequenceTask(Task):
    """What the problems have in common: the scores of texts, and which texts count."""

    spec: SequenceClassification

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn.

        The batch has `tokens` and `second`, (B, T), and `labels` and `filled`, (B, …). A penalty of the model, such as
        of experts unevenly busy, is added to the gradient.
        """
        return self.predict(model, batch)[0]

    def predict(
        self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `Task.predict`: an item is a text."""
        tokens_BT = batch["tokens"].astype(jnp.int32)
        segments_BT = segments_of(batch, tokens_BT.shape[1])
        hidden_BTD, penalty = model.hidden_and_penalty(
            tokens_BT, segments_BT=segments_BT, types_BT=batch["second"].astype(jnp.int32)
        )
        scores_BC = model.scores(hidden_BTD, segments_BT)
        loss, predictions = self.compare(scores_BC, batch["labels"], (segments_BT > 0).any(1))
        added = loss.weight * (penalty - jax.lax.stop_gradient(penalty))
        return loss._replace(sum=loss.sum + added), predictions

    @abstractmethod
    def compare(
        self, scores_BC: Float[Array, "B C"], labels: Array, filled_B: Bool[Array, " B"]
    ) -> tuple[Loss, Mapping[str, Array]]:
        """Return the loss of scores, and the predictions. Rows that are not filled, or have no label, do not count."""


@dataclass(frozen=True)
class SequenceClassificationTask(SequenceTask):
    """Cross-entropy of the classes, and the share of the texts whose class has the largest score. The weight is the sum
    of the class weights of the texts."""

    metrics: ClassVar[Mapping[str, Statistic]] = {"accuracy": Ratio.zero()}

    def compare(
        self, scores_BC: Float[Array, "B C"], labels: Array, filled_B: Bool[Array, " B"]
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `SequenceTask.compare`; labels are int32 (B,)."""
        counted_B = ((labels >= 0) & filled_B).astype(jnp.float32)
        losses_B, weights_B = cross_entropy(scores_BC, labels, self.spec.class_weights, self.spec.label_smoothing)
        predicted_B = scores_BC.argmax(-1).astype(jnp.int32)
        correct = ((predicted_B == labels) * counted_B).sum()
        ratio = Ratio(correct, counted_B.sum())
        loss = Loss((losses_B * counted_B).sum(), (weights_B * counted_B).sum(), {"accuracy": ratio})
        return loss, {"label": labels, "predicted": predicted_B, "scores": scores_BC, "weights": counted_B}


class MultiLabelTask(SequenceTask):
    """Binary cross-entropy of each class. The loss of a text is the mean. A class with a probability above one half
    is predicted."""

    def compare(
        self, scores_BC: Float[Array, "B C"], labels: Array, filled_B: Bool[Array, " B"]
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `SequenceTask.compare`; labels are int32 (B, C): 1 for the classes of a text, 0 for others."""
        counted_B = ((labels >= 0).all(-1) & filled_B).astype(jnp.float32)
        positive_C, class_C = (
            jnp.asarray(weights or (1.0,), jnp.float32)
            for weights in (self.spec.positive_weights, self.spec.class_weights)
        )
        has_BC = labels > 0
        losses_BC = jnp.where(has_BC, positive_C * jax.nn.softplus(-scores_BC), jax.nn.softplus(scores_BC)) * class_C
        loss = Loss((losses_BC.mean(-1) * counted_B).sum(), counted_B.sum())
        found = {"labels": labels, "predicted_labels": (scores_BC > 0).astype(jnp.int32)}
        return loss, found | {"scores": scores_BC, "weights": counted_B}


class RegressionTask(SequenceTask):
    """Squared error of each number. The loss of a text is the mean."""

    def compare(
        self, scores_BC: Float[Array, "B C"], labels: Array, filled_B: Bool[Array, " B"]
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `SequenceTask.compare`; labels are float32, (B,) of one number and (B, C) of several."""
        targets_BC = labels.reshape(scores_BC.shape)
        counted_B = (jnp.isfinite(targets_BC).all(-1) & filled_B).astype(jnp.float32)
        targets_BC = jnp.where(counted_B[:, None] > 0, targets_BC, 0)
        loss = Loss((jnp.square(scores_BC - targets_BC).mean(-1) * counted_B).sum(), counted_B.sum())
        predicted, target = scores_BC.reshape(labels.shape), targets_BC.reshape(labels.shape)
        return loss, {"target": target, "predicted": predicted, "weights": counted_B}


def cross_entropy(
    scores: Float[Array, "*n C"],
    labels: Int[Array, "*n"],
    class_weights: tuple[float, ...] = (),
    smoothing: float = 0.0,
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Return the weighted cross-entropy of each item, in nats, and its weight: that of its class, or 1.

    If a label is -1, both are those of class 0. With `smoothing`, that share of the target is spread evenly over all
    classes, each with its own weight, as in torch's `cross_entropy`.
    """
    labels, logs = jnp.maximum(labels, 0), jax.nn.log_softmax(scores)
    by_class = jnp.asarray(class_weights or (1.0,) * scores.shape[-1], jnp.float32)
    weights = by_class[labels]
    losses = -jnp.take_along_axis(logs, labels[..., None], axis=-1)[..., 0] * weights
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * (logs * by_class).mean(-1)
    return losses, weights


def build(spec: SequenceClassification, tokenizer: LoadedTokenizer | None) -> SequenceTask:
    """Return the task."""
    match spec.problem:
        case "multi-class":
            return SequenceClassificationTask(spec)
        case "multi-label":
            return MultiLabelTask(spec)
        case "regression":
            return RegressionTask(spec)
