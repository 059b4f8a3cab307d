"""Beam search for encoder-decoders, which finds the same targets as `generate` of transformers.

Shapes: N sources, K beams of each, C candidates, T tokens at most, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from trainkit.errors import TrainkitError
from trainkit.infer.generate import NOTHING
from trainkit.infer.target_rules import NO_RULES, TargetRules

#: The score of candidates that must not be chosen.
_WORST = -1.0e9


@dataclass(frozen=True)
class BeamSearch:
    """Settings of a search. Hashable: each is compiled separately.

    Raises:
        TrainkitError: a value is out of its range.
    """

    beams: int = 1
    """How many candidate targets to keep for each source. With 1, the search takes the likeliest token each time."""
    length_penalty: float = 1.0
    """The log-likelihood of a target is divided by its length to this power (Wu et al. 2016): above 0 favours longer
    targets."""
    early_stopping: bool = False
    """Whether a search ends as soon as it has found as many targets as beams. Otherwise it ends when no open beam can
    become better, judged by its present length."""
    rules: TargetRules = NO_RULES
    """Which tokens a target must or must not have, also without beams."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise TrainkitError(f"beams must be at least 1, found {self.beams}")


#: Takes the likeliest token each time.
GREEDY = BeamSearch()


class Found(NamedTuple):
    """The best targets of each source that have ended, the best first."""

    tokens_NKT: Int[Array, "N K T"]
    scores_NK: Float[Array, "N K"]
    """Log-likelihoods over powers of lengths."""
    ended_NK: Bool[Array, "N K"]
    """Whether the target exists yet."""


class Search(NamedTuple):
    """The state of a search between two tokens."""

    length: Int[Array, ""]
    """Tokens that each beam has."""
    logits_RV: Float[Array, "N*K V"]
    """The logits of the next token of each beam; the beams of a source follow one another."""
    cache: Any
    tokens_NKT: Int[Array, "N K T"]
    sums_NK: Float[Array, "N K"]
    """The log-likelihoods of the beams."""
    found: Found
    open_N: Bool[Array, " N"]
    """Whether a better target may still be found."""


def search_targets(
    model: Any,
    memory_NSD: Float[Array, "N S D"],
    segments_NS: Int[Array, "N S"],
    *,
    start: int,
    new_tokens: int,
    search: BeamSearch,
    ends: tuple[int, ...],
) -> Int[Array, "N T"]:
    """Return the best target of each source, up to `new_tokens` tokens with the one that ends it, then `NOTHING`.

    What a search finds depends on its source alone, whatever other sources are searched at the same time. The
    target of a row without a source is arbitrary.
    """
    n, k = len(memory_NSD), search.beams
    cache = model.start(memory_NSD, segments_NS, new_tokens + 1, beams=k)
    logits_RV, cache = model.step(jnp.full((n * k, 1), start, jnp.int32), cache)
    nothing_NKT = jnp.full((n, k, new_tokens), NOTHING, jnp.int32)
    worst_NK = jnp.full((n, k), _WORST)
    state = Search(
        length=jnp.int32(0),
        logits_RV=logits_RV,
        cache=cache,
        tokens_NKT=nothing_NKT,
        # all beams begin with the same tokens: only the first has candidates
        sums_NK=worst_NK.at[:, 0].set(0),
        found=Found(nothing_NKT, worst_NK, jnp.zeros((n, k), bool)),
        open_N=(segments_NS > 0).any(1),
    )

    def goes_on(state: Search) -> Array:
        return (state.length < new_tokens) & state.open_N.any()

    def add_token(state: Search) -> Search:
        return _add_token(model, state, search, start, ends)

    return jax.lax.while_loop(goes_on, add_token, state).found.tokens_NKT[:, 0]


def _add_token(model: Any, state: Search, search: BeamSearch, start: int, ends: tuple[int, ...]) -> Search:
    n, k, most = state.tokens_NKT.shape
    ends_E = jnp.asarray(ends, jnp.int32)
    length = state.length + 1
    log_p_RV = jax.nn.log_softmax(state.logits_RV, axis=-1)
    log_p_RV = search.rules.apply(log_p_RV, state.tokens_NKT.reshape(n * k, most), state.length, start=start, ends=ends)
    sums_NC, from_NC, tokens_NCT = _candidates(state, log_p_RV, count=max(2, 1 + len(ends)) * k)
    last_NC = jax.lax.dynamic_index_in_dim(tokens_NCT, state.length, axis=2, keepdims=False)
    ended_NC = jnp.isin(last_NC, ends_E) | (length == most)
    # only the first k candidates may be targets; enough of the others have not ended, so the search can continue
    found = _keep_best(state, search, sums_NC, tokens_NCT, ended_NC & (jnp.arange(ended_NC.shape[1]) < k), length)
    running_NC = sums_NC + ended_NC * _WORST
    sums_NK, which_NK = jax.lax.top_k(running_NC, k)
    tokens_NKT, from_NK = _pick(tokens_NCT, which_NK), _pick(from_NC, which_NK)
    rows_R = (from_NK + jnp.arange(n)[:, None] * k).reshape(-1)
    cache = state.cache.rows(rows_R)
    chosen_R = jax.lax.dynamic_index_in_dim(tokens_NKT, state.length, axis=2, keepdims=False).reshape(-1)
    logits_RV, cache = model.step(chosen_R[:, None], cache)
    best_N = sums_NK[:, 0] / length.astype(jnp.float32) ** search.length_penalty
    worst_NK = jnp.where(found.ended_NK, found.scores_NK.min(1, keepdims=True), _WORST)
    open_N = state.open_N & (best_N[:, None] > worst_NK).any(1)
    if search.early_stopping:
        open_N &= ~found.ended_NK.all(1)
    return Search(length, logits_RV, cache, tokens_NKT, sums_NK, found, open_N)


def _candidates(state: Search, log_p_RV: Array, *, count: int) -> tuple[Array, Array, Array]:
    """Return the likeliest beams with one more token: their log-likelihoods (N, C), the beams that they extend (N, C),
    and their tokens (N, C, T)."""
    n, k, _ = state.tokens_NKT.shape
    log_p_NKV = log_p_RV.reshape(n, k, -1) + state.sums_NK[:, :, None]
    vocab = log_p_NKV.shape[-1]
    sums_NC, place_NC = jax.lax.top_k(log_p_NKV.reshape(n, k * vocab), min(count, k * vocab))
    from_NC, token_NC = place_NC // vocab, place_NC % vocab
    tokens_NCT = _pick(state.tokens_NKT, from_NC)
    return sums_NC, from_NC, tokens_NCT.at[:, :, state.length].set(token_NC.astype(jnp.int32))


def _keep_best(
    state: Search, search: BeamSearch, sums_NC: Array, tokens_NCT: Array, ended_NC: Array, length: Array
) -> Found:
    """Return the best targets among those found before and those that have just ended."""
    scores_NC = sums_NC / length.astype(jnp.float32) ** search.length_penalty
    scores_NC = scores_NC + ~(state.open_N[:, None] & ended_NC) * _WORST
    old = state.found
    scores_NK, which_NK = jax.lax.top_k(jnp.concatenate([old.scores_NK, scores_NC], 1), search.beams)
    tokens_NKT = _pick(jnp.concatenate([old.tokens_NKT, tokens_NCT], 1), which_NK)
    return Found(tokens_NKT, scores_NK, _pick(jnp.concatenate([old.ended_NK, ended_NC], 1), which_NK))


def _pick(array: Array, which_NK: Array) -> Array:
    """Return the entries `which_NK` of the second axis, chosen for each row."""
    return jax.vmap(lambda row, which: row[which])(array, which_NK)
