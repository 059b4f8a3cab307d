"""Find the answer to a question in a text. B windows, T positions, L tokens of the longest answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.data.documents.question import TARGET
from trainkit.data.tokenizer.vocabulary import LoadedTokenizer
from trainkit.recipe.sections.task import QuestionAnswering
from trainkit.tasks.task import Loss, Task, segments_of

#: The score of what cannot be chosen: the sum of two is finite.
_NEVER = -1e30


@dataclass(frozen=True)
class QuestionAnsweringTask(Task):
    """The mean cross-entropy of the first and of the last token of the answer, over the tokens of a window."""

    spec: QuestionAnswering

    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None) -> Loss:
        """See `Task.loss`; nothing is drawn, and the weight is the number of windows.

        The batch has `tokens`, `second` and `labels`, (B, T), and `filled`, (B,).
        """
        return self._score(model, batch)[0]

    def predict(
        self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray | None = None
    ) -> tuple[Loss, Mapping[str, Array]]:
        """See `Task.predict`: an item is a window. `first` and `last` are the places of the likeliest answer in it,
        `score` is the sum of their scores and `null_score` that of the first token; `tokens` and `answers`, int32
        (B, T), are those of the batch and its `labels`."""
        loss, scores_BT2, counted_B = self._score(model, batch)
        in_context_BT = (batch["labels"] >= 0) & (jnp.arange(batch["labels"].shape[1]) > 0)
        first_B, last_B, score_B = best_span(scores_BT2, in_context_BT, self.spec.max_answer_length)
        found = {"first": first_B, "last": last_B, "score": score_B, "null_score": scores_BT2[:, 0].sum(-1)}
        given = {"tokens": batch["tokens"].astype(jnp.int32), "answers": batch["labels"]}
        return loss, {**found, **given, "weights": counted_B}

    def _score(self, model: Any, batch: Mapping[str, Array]) -> tuple[Loss, Float[Array, "B T 2"], Float[Array, " B"]]:
        """Return the loss, the scores of each token as first and as last one, and which windows count."""
        tokens_BT = batch["tokens"].astype(jnp.int32)
        segments_BT = segments_of(batch, tokens_BT.shape[1])
        hidden_BTD, penalty = model.hidden_and_penalty(
            tokens_BT, segments_BT=segments_BT, types_BT=batch["second"].astype(jnp.int32)
        )
        scores_BT2 = model.scores(hidden_BTD, segments_BT)
        target_BT = (batch["labels"] > 0) & (batch["labels"] & TARGET > 0)
        first_B, last_B = ends_of(target_BT)
        logs_BT2 = jax.nn.log_softmax(jnp.where(segments_BT[..., None] > 0, scores_BT2, _NEVER), axis=1)
        places_B2 = jnp.stack([first_B, last_B], 1)
        losses_B = -jnp.take_along_axis(logs_BT2, places_B2[:, None], axis=1)[:, 0].mean(-1)
        counted_B = target_BT.any(1).astype(jnp.float32)
        windows = counted_B.sum()
        added = windows * (penalty - jax.lax.stop_gradient(penalty))
        return Loss((losses_B * counted_B).sum() + added, windows), scores_BT2, counted_B


def ends_of(marked_BT: Bool[Array, "B T"]) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Return the first and the last marked place of each row; 0 and T - 1 where there is none."""
    return marked_BT.argmax(1), marked_BT.shape[1] - 1 - marked_BT[:, ::-1].argmax(1)


def best_span(
    scores_BT2: Float[Array, "B T 2"], allowed_BT: Bool[Array, "B T"], longest: int
) -> tuple[Int[Array, " B"], Int[Array, " B"], Float[Array, " B"]]:
    """Return the first and the last place of the span of at most `longest` allowed places whose scores have the largest
    sum, and the sum. Of equal spans it is the one that begins first, and of these the shortest."""
    width, longest = scores_BT2.shape[1], min(longest, scores_BT2.shape[1])
    first_BT, last_BT = jnp.moveaxis(jnp.where(allowed_BT[..., None], scores_BT2, _NEVER), -1, 0)
    behind_BT = jnp.pad(last_BT, ((0, 0), (0, longest - 1)), constant_values=_NEVER)
    sums_BTL = jnp.stack([first_BT + behind_BT[:, more : more + width] for more in range(longest)], -1)
    best_B = sums_BTL.reshape(len(sums_BTL), -1).argmax(1).astype(jnp.int32)
    first_B, more_B = best_B // longest, best_B % longest
    return first_B, first_B + more_B, sums_BTL.max((1, 2))


def build(spec: QuestionAnswering, tokenizer: LoadedTokenizer | None) -> QuestionAnsweringTask:
    """Return the task."""
    return QuestionAnsweringTask(spec)
