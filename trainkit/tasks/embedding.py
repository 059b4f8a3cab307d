"""Give texts that belong together similar vectors.

B pairs, S sequences, T positions, N = B x S, D hidden; of the axis of S, 0 is the query, 1 its positive, and the others
are hard negatives. C = B x (S - 1) texts may be found: first all positives, then the negatives.
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

        The batch has `tokens`, (B, S, T), and `filled`, (B, S), which is 0 in rows of padding. A penalty of the model,
        such as of experts unevenly busy, is added to the gradient.
        """
        tokens_NT = as_rows(batch["tokens"]).astype(jnp.int32)
        segments_NT = segments_of({"filled": batch["filled"].reshape(-1)}, tokens_NT.shape[1])
        hidden_NTD, penalty = model.hidden_and_penalty(tokens_NT, segments_BT=segments_NT)
        vectors_ND = pool(hidden_NTD, segments_NT, self.spec.pooling)
        vectors_BSD = vectors_ND.reshape(*batch["filled"].shape, -1)
        counted_B = (batch["filled"] > 0).all(1).astype(jnp.float32)
        pairs, losses_B = counted_B.sum(), jnp.zeros_like(counted_B)
        sizes = self.spec.dimensions or (vectors_BSD.shape[-1],)
        for size, weight in zip(sizes, self.spec.dimension_weights or (1.0,) * len(sizes), strict=True):
            similar_BC = similarities(vectors_BSD[..., :size], counted_B)
            losses_B = losses_B + weight * self.losses(similar_BC / self.spec.temperature)
        whole_BC = jax.lax.stop_gradient(similarities(vectors_BSD, counted_B))
        added = pairs * (penalty - jax.lax.stop_gradient(penalty))
        return Loss((losses_B * counted_B).sum() + added, pairs, self._measure(whole_BC, counted_B))

    def losses(self, scores_BC: Float[Array, "B C"]) -> Float[Array, " B"]:
        """Return the loss of each pair, of the scores of all texts for each query, in rows."""
        found_B = -jnp.diagonal(jax.nn.log_softmax(scores_BC, axis=1))
        if not self.spec.symmetric:
            return found_B
        positives_BB = scores_BC[:, : len(scores_BC)]
        return (found_B - jnp.diagonal(jax.nn.log_softmax(positives_BB, axis=0))) / 2

    def _measure(self, similar_BC: Array, counted_B: Array) -> dict[str, Statistic]:
        """Return how often a query's positive is among the most similar ones, and the mean of 1 / its place."""
        # a query whose vector is not finite finds nothing
        place_B = 1 + (~(similar_BC <= jnp.diagonal(similar_BC)[:, None])).sum(1)

        def mean(values_B: Array) -> Ratio:
            return Ratio((values_B * counted_B).sum(), counted_B.sum())

        return {"recall_at_1": mean(place_B <= 1), "recall_at_10": mean(place_B <= 10), "mrr": mean(1 / place_B)}


def pool(hidden_NTD: Float[Array, "N T D"], segments_NT: Int[Array, "N T"], how: str) -> Float[Array, "N D"]:
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


def similarities(vectors_BSD: Float[Array, "B S D"], counted_B: Float[Array, " B"]) -> Float[Array, "B C"]:
    """Return the cosine of each query, in rows, with each text; that of padding is a very small number."""
    lengths_BS1 = jnp.sqrt(jnp.maximum(jnp.square(vectors_BSD).sum(-1, keepdims=True), 1e-24))
    unit_BSD = vectors_BSD / lengths_BS1
    texts_CD = jnp.moveaxis(unit_BSD[:, 1:], 1, 0).reshape(-1, unit_BSD.shape[-1])
    cosines_BC = jnp.einsum("qd,pd->qp", unit_BSD[:, 0], texts_CD, precision="highest")
    counted_C = jnp.tile(counted_B, unit_BSD.shape[1] - 1)
    # padding finds itself, so that no row is without a finite number
    same_BC = jnp.eye(len(counted_B), len(counted_C), dtype=bool)
    return jnp.where((counted_B[:, None] * counted_C > 0) | same_BC, cosines_BC, -jnp.inf)


def build(spec: Embedding, tokenizer: LoadedTokenizer | None) -> EmbeddingTask:
    """Return the task."""
    return EmbeddingTask(spec)
