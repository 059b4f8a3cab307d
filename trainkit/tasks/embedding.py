"""Give texts that belong together similar vectors.

B pairs, T positions, N = B x 2, D hidden; of the axis of 2, 0 is the query and 1 its positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.embedding_task import Embedding
from trainkit.tasks.preference import as_rows
from trainkit.tasks.statistics import Ratio, Statistic
from trainkit.tasks.task import Loss, Task, segments_of


@dataclass(frozen=True)
class EmbeddingTask(Task):
    """The cross-entropy of each query's positive among the positives of the batch, and how well queries find them."""

    spec: Embedding

    metrics: ClassVar[Mapping[str, Statistic]] = {
        "recall_at_1": Ratio.zero(),
        "recall_at_10": Ratio.zero(),
        "mrr": Ratio.zero(),
    }

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the number of pairs.

        The batch has `tokens`, (B, 2, T), and `filled`, (B, 2), which is 0 in rows of padding. A penalty of the model,
        such as of experts unevenly busy, is added to the gradient.
        """
        tokens_NT = as_rows(batch["tokens"]).astype(jnp.int32)
        segments_NT = segments_of({"filled": batch["filled"].reshape(-1)}, tokens_NT.shape[1])
        hidden_NTD, penalty = model.hidden_and_penalty(tokens_NT, segments_BT=segments_NT)
        vectors_B2D = pooled(hidden_NTD, segments_NT, self.spec.pooling).reshape(-1, 2, hidden_NTD.shape[-1])
        counted_B = (batch["filled"] > 0).all(1).astype(jnp.float32)
        pairs, losses_B = counted_B.sum(), jnp.zeros_like(counted_B)
        sizes = self.spec.dimensions or (vectors_B2D.shape[-1],)
        for size, weight in zip(sizes, self.spec.dimension_weights or (1.0,) * len(sizes), strict=True):
            similar_BB = similarities(vectors_B2D[..., :size], counted_B)
            losses_B = losses_B + weight * self.losses(similar_BB / self.spec.temperature)
        whole_BB = jax.lax.stop_gradient(similarities(vectors_B2D, counted_B))
        added = pairs * (penalty - jax.lax.stop_gradient(penalty))
        return Loss((losses_B * counted_B).sum() + added, pairs, self._measure(whole_BB, counted_B))

    def losses(self, scores_BB: Float[Array, "B B"]) -> Float[Array, " B"]:
        """Return the loss of each pair, of the scores of all positives for each query, in rows."""
        found_B = -jnp.diagonal(jax.nn.log_softmax(scores_BB, axis=1))
        if not self.spec.symmetric:
            return found_B
        return (found_B - jnp.diagonal(jax.nn.log_softmax(scores_BB, axis=0))) / 2

    def _measure(self, similar_BB: Array, counted_B: Array) -> dict[str, Statistic]:
        """Return how often a query's positive is among the most similar ones, and the mean of 1 / its place."""
        # a query whose vector is not finite finds nothing
        place_B = 1 + (~(similar_BB <= jnp.diagonal(similar_BB)[:, None])).sum(1)

        def mean(values_B: Array) -> Ratio:
            return Ratio((values_B * counted_B).sum(), counted_B.sum())

        return {"recall_at_1": mean(place_B <= 1), "recall_at_10": mean(place_B <= 10), "mrr": mean(1 / place_B)}


def pooled(hidden_NTD: Float[Array, "N T D"], segments_NT: Int[Array, "N T"], how: str) -> Float[Array, "N D"]:
    """Return the vector of each text in float32: the mean of its hidden states, the first or the last one.

    `segments_NT` is 0 in padding; a row of padding alone has a vector without meaning.
    """
    hidden_NTD, there_NT = hidden_NTD.astype(jnp.float32), segments_NT > 0
    if how == "first":
        return hidden_NTD[:, 0]
    lengths_N = jnp.maximum(there_NT.sum(1), 1)
    if how == "last":
        return jnp.take_along_axis(hidden_NTD, (lengths_N - 1)[:, None, None], axis=1)[:, 0]
    return jnp.where(there_NT[..., None], hidden_NTD, 0).sum(1) / lengths_N[:, None]


def similarities(vectors_B2D: Float[Array, "B 2 D"], counted_B: Float[Array, " B"]) -> Float[Array, "B B"]:
    """Return the cosine of each query, in rows, with each positive; that of padding is a very small number."""
    lengths_B2 = jnp.sqrt(jnp.maximum(jnp.square(vectors_B2D).sum(-1, keepdims=True), 1e-24))
    unit_B2D = vectors_B2D / lengths_B2
    cosines_BB = jnp.einsum("qd,pd->qp", unit_B2D[:, 0], unit_B2D[:, 1], precision="highest")
    # padding finds itself, so that no row is without a finite number
    same_BB = jnp.eye(len(counted_B), dtype=bool)
    return jnp.where((counted_B[:, None] * counted_B > 0) | same_BB, cosines_BB, -jnp.inf)


def build(spec: Embedding, tokenizer: LoadedTokenizer | None) -> EmbeddingTask:
    """Return the task."""
    return EmbeddingTask(spec)
