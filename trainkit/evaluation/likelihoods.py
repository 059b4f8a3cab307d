"""Log-likelihoods of given continuations, or of targets given their sources, many at a time.

Shapes: N sequences, P positions of the longest one's bucket, S those of the longest source's, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from trainkit.errors import FAILED, TrainkitError
from trainkit.infer.generate import bucket, pad_prompts
from trainkit.infer.seq2seq import read_sources
from trainkit.tasks.seq2seq import shifted_right
from trainkit.train.out_of_memory import can_recover_from

T = TypeVar("T")
R = TypeVar("R")

#: Positions of which there are logits at the same time, for every sequence.
_AT_ONCE = 64


class Continuation(NamedTuple):
    """Tokens to score, and those before them or, for an encoder-decoder, of their source."""

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


@dataclass
class RowsAtOnce:
    """How many texts are computed at once: half as many each time that memory runs out."""

    count: int
    warn: Callable[[str], None] = lambda message: None
    """Called with what a person should know."""

    def batches(self, items: Sequence[T], compute: Callable[[Sequence[T]], R]) -> Iterator[tuple[Sequence[T], R]]:
        """Yield up to `count` consecutive items at a time, and what `compute` returns for them.

        Raises:
            TrainkitError: there is no memory for one item.
        """
        begin = 0
        while begin < len(items):
            chosen = items[begin : begin + self.count]
            try:
                found = compute(chosen)
            except jax.errors.JaxRuntimeError as error:
                if not can_recover_from(error):
                    raise
                self._halve()
                continue
            yield chosen, found
            begin += len(chosen)

    def _halve(self) -> None:
        if self.count == 1:
            raise TrainkitError(
                "there is no memory for one text",
                hint="use a device with more memory, or a run with a shorter context",
                exit_code=FAILED,
            )
        before, self.count = self.count, self.count // 2
        self.warn(f"no memory for {before} texts at once: continuing with {self.count}")


def score_rows(
    model: Any,
    tokens_NP: Int[Array, "N P"],
    targets_NP: Int[Array, "N P"],
    counted_NP: Bool[Array, "N P"],
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Return each row's sum of the log-likelihoods of its counted targets, in nats, float32, and whether all of these
    have the largest logit."""
    hidden_NPD, _ = model.hidden_states(tokens_NP)
    return _score_states(model, hidden_NPD, targets_NP, counted_NP)


def score_targets(
    model: Any,
    sources_NS: Int[Array, "N S"],
    lengths_N: Int[Array, " N"],
    targets_NP: Int[Array, "N P"],
    counted_NP: Bool[Array, "N P"],
    *,
    start: int,
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Return the same of targets, given their sources: the decoder reads the token `start`, then the target."""
    memory_NSD, segments_NS = read_sources(model, sources_NS, lengths_N)
    hidden_NPD = model.decode(shifted_right(targets_NP, start), memory_NSD, segments_NS)
    return _score_states(model, hidden_NPD, targets_NP, counted_NP)


def _score_states(
    model: Any, hidden_NPD: Float[Array, "N P D"], targets_NP: Int[Array, "N P"], counted_NP: Bool[Array, "N P"]
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
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
    of lengths.

    Of a text longer than the model's context, the last tokens count, as in lm-eval's model for transformers.
    """

    model: Any
    mesh: Mesh | None
    """The devices that the model lies on; one where not given."""
    rows: RowsAtOnce
    context: int
    """The most tokens that the model reads."""

    def __post_init__(self) -> None:
        self._score = jax.jit(score_rows)

    def scores(self, continuations: Sequence[Continuation]) -> Iterator[tuple[int, Likelihood]]:
        """Yield (index of a continuation, its likelihood), the longest first.

        Raises:
            TrainkitError: a continuation is longer than the model's context, or there is no memory for one row.
        """
        for index, one in enumerate(continuations):
            if not 0 < len(one.tokens) <= self.context or not one.context:
                raise TrainkitError(
                    f"continuation {index + 1:,} of {len(continuations):,} has {len(one.tokens):,} tokens after"
                    f" {len(one.context):,}, and the model's context has {self.context:,}",
                    hint="there must be tokens in both, and no more to score than the context has",
                )
        kept = [self._cut(one) for one in continuations]
        order = sorted(range(len(kept)), key=lambda index: (-sum(map(len, kept[index])), index))

        def score(chosen: Sequence[int]) -> list[Likelihood]:
            return self._batch([kept[index] for index in chosen])

        for chosen, found in self.rows.batches(order, score):
            yield from zip(chosen, found, strict=True)

    def _cut(self, one: Continuation) -> Continuation:
        """Return a continuation with as much of its context as the model reads."""
        room = self.context + 1 - len(one.tokens)
        return Continuation(one.context[-room:], one.tokens)

    def _batch(self, chosen: Sequence[Continuation]) -> list[Likelihood]:
        rows = self.rows.count
        with nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            found = self._score(self.model, *map(self._put, self._arrays(chosen, rows)))
            likelihoods_N, greedy_N = map(np.asarray, found)
        return [Likelihood(float(likelihoods_N[n]), bool(greedy_N[n])) for n in range(len(chosen))]

    def _arrays(self, chosen: Sequence[Continuation], rows: int) -> tuple[np.ndarray, ...]:
        """Return what `score_rows` takes, filled up to so many rows."""
        texts = [[*one.context, *one.tokens] for one in chosen] + [[0]] * (rows - len(chosen))
        width = bucket(max(map(len, texts)) - 1, most=self.context)
        tokens_NP, lengths_N = pad_prompts([text[:-1] for text in texts], width)
        targets_NP, _ = pad_prompts([text[1:] for text in texts], width)
        counts_N = np.array([len(one.tokens) for one in chosen] + [0] * (rows - len(chosen)))
        places_P = np.arange(width)
        counted_NP = (places_P >= (lengths_N - counts_N)[:, None]) & (places_P < lengths_N[:, None])
        return tokens_NP, targets_NP, counted_NP

    def _put(self, rows: np.ndarray) -> np.ndarray | Array:
        """Return an array of rows, split over all devices if possible."""
        if self.mesh is None:
            return rows
        split = PartitionSpec(self.mesh.axis_names) if len(rows) % self.mesh.size == 0 else PartitionSpec()
        return jax.device_put(rows, NamedSharding(self.mesh, split))


@dataclass
class TargetScorer(Scorer):
    """Scores targets under an encoder-decoder: the context of a continuation is the source."""

    start: int = 0
    """The token before every target."""

    def __post_init__(self) -> None:
        self._score = jax.jit(partial(score_targets, start=self.start))

    def _cut(self, one: Continuation) -> Continuation:
        return Continuation(one.context[-self.context :], one.tokens)

    def _arrays(self, chosen: Sequence[Continuation], rows: int) -> tuple[np.ndarray, ...]:
        filled = [*chosen, *[Continuation((), ())] * (rows - len(chosen))]
        sides = [one.context for one in filled], [one.tokens for one in filled]
        (sources_NS, sources_N), (targets_NP, targets_N) = (
            pad_prompts(side, bucket(max(map(len, side)), most=self.context)) for side in sides
        )
        counted_NP = np.arange(targets_NP.shape[1]) < targets_N[:, None]
        return sources_NS, sources_N, targets_NP, counted_NP
