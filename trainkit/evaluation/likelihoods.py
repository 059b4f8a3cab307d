"""Log-likelihoods of given continuations under a causal model, many at a time.

Shapes: N sequences, P positions of the longest one's bucket, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from trainkit.errors import FAILED, TrainkitError
from trainkit.infer.generate import bucket, pad_prompts
from trainkit.models.stack import LanguageModel
from trainkit.train.out_of_memory import can_recover_from

#: Positions of which there are logits at the same time, for every sequence.
_AT_ONCE = 64


class Continuation(NamedTuple):
    """Tokens to score, and those before them."""

    context: Sequence[int]
    """At least one token."""
    tokens: Sequence[int]
    """At least one token."""


class Likelihood(NamedTuple):
    """How likely a continuation is."""

    log_likelihood: float
    """Of all its tokens together, in nats."""
    is_greedy: bool
    """Whether each of its tokens is the likeliest one at its place."""


def score_rows(
    model: LanguageModel,
    tokens_NP: Int[Array, "N P"],
    targets_NP: Int[Array, "N P"],
    counted_NP: Bool[Array, "N P"],
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Return each row's sum of the log-likelihoods of its counted targets, in nats, float32, and whether all of these
    have the largest logit."""
    hidden_NPD, _ = model.hidden(tokens_NP)

    def score(position: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden_ND, target_N = position
        logits_NV = model.logits(hidden_ND)
        target_N1 = jnp.take_along_axis(logits_NV, target_N[:, None], axis=-1)
        return target_N1[:, 0] - jax.nn.logsumexp(logits_NV, axis=-1), logits_NV.argmax(-1) == target_N

    positions = hidden_NPD.swapaxes(0, 1), targets_NP.T
    likelihoods_PN, likeliest_PN = jax.lax.map(score, positions, batch_size=_AT_ONCE)
    total_N = jnp.where(counted_NP, likelihoods_PN.T, 0).sum(-1)
    return total_N, (likeliest_PN.T | ~counted_NP).all(-1)


@dataclass
class Scorer:
    """Scores continuations, the longest first, in batches of one number of rows: it compiles a program for each bucket
    of lengths. When memory runs out, it continues with half as many rows."""

    model: LanguageModel
    mesh: Mesh | None = None
    """The devices that the model lies on; one where not given."""
    rows: int = 16
    warn: Callable[[str], None] = lambda message: None

    def __post_init__(self) -> None:
        self._score = jax.jit(score_rows)

    def scores(self, continuations: Sequence[Continuation]) -> Iterator[tuple[int, Likelihood]]:
        """Yield (index of a continuation, its likelihood), the longest first.

        Of a text longer than the model's context, the last tokens count, as in lm-eval's model for transformers.

        Raises:
            TrainkitError: a continuation is longer than the model's context, or there is no memory for one row.
        """
        context = self.model.context_length
        for index, one in enumerate(continuations):
            if not 0 < len(one.tokens) <= context or not one.context:
                raise TrainkitError(
                    f"continuation {index + 1:,} of {len(continuations):,} has {len(one.tokens):,} tokens after"
                    f" {len(one.context):,}, and the model's context has {context:,}",
                    hint="there must be tokens in both, and no more to score than the context has",
                )
        kept = [[*one.context, *one.tokens][-context - 1 :] for one in continuations]
        order = sorted(range(len(kept)), key=lambda index: -len(kept[index]))
        begin = 0
        while begin < len(order):
            chosen = order[begin : begin + self.rows]
            try:
                found = self._batch([kept[at] for at in chosen], [len(continuations[at].tokens) for at in chosen])
            except jax.errors.JaxRuntimeError as error:
                if not can_recover_from(error):
                    raise
                self._take_fewer_rows()
                continue
            yield from zip(chosen, found, strict=True)
            begin += len(chosen)

    def _batch(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[Likelihood]:
        """Return the likelihood of the last tokens of each text, `counts` of them."""
        width = bucket(max(map(len, texts)) - 1, most=self.model.context_length)
        filled = [*texts, *[(0,)] * (self.rows - len(texts))]
        tokens_NP, lengths_N = pad_prompts([text[:-1] for text in filled], width)
        targets_NP, _ = pad_prompts([text[1:] for text in filled], width)
        counts_N = np.array([*counts, *[0] * (self.rows - len(counts))])
        places_P = np.arange(width)
        counted_NP = (places_P >= (lengths_N - counts_N)[:, None]) & (places_P < lengths_N[:, None])
        with nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            found = self._score(self.model, *map(self._put, (tokens_NP, targets_NP, counted_NP)))
            likelihoods_N, greedy_N = map(np.asarray, found)
        return [Likelihood(float(likelihoods_N[n]), bool(greedy_N[n])) for n in range(len(texts))]

    def _put(self, rows: np.ndarray) -> np.ndarray | Array:
        """Return an array of rows, split over all devices if possible."""
        if self.mesh is None:
            return rows
        split = PartitionSpec(self.mesh.axis_names) if len(rows) % self.mesh.size == 0 else PartitionSpec()
        return jax.device_put(rows, NamedSharding(self.mesh, split))

    def _take_fewer_rows(self) -> None:
        if self.rows == 1:
            raise TrainkitError(
                "there is no memory to score one text",
                hint="use a device with more memory, or a run with a shorter context",
                exit_code=FAILED,
            )
        self.rows //= 2
        self.warn(f"no memory to score {self.rows * 2} texts at once: continuing with {self.rows}")
