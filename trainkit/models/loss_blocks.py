"""Folds over blocks of tokens and of the vocabulary, for losses that never hold the logits of all tokens at once.

Shapes: T tokens, N tokens of a block, D hidden, V vocabulary, J blocks of it, U entries of such a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Sums = TypeVar("Sums")

#: Bytes of logits that a CPU computes at once, so that they are still in its caches when used. Elsewhere products
#: of whole blocks of tokens are faster.
CACHED_BYTES = 2 << 20


def entries_at_once(tokens: int, vocab: int) -> int:
    """Return how many entries of the vocabulary to process at once.

    On a CPU it is an odd multiple of 16, because rows a power of two apart would share few lines of its caches.
    """
    return 16 * (CACHED_BYTES // (4 * 16 * tokens) | 1) if jax.default_backend() == "cpu" else vocab


class LossBlocks(NamedTuple):
    """How many tokens and entries of the vocabulary are processed at once, and the soft cap of their logits."""

    tokens: int
    entries: int
    softcap: float | None
    dtype: jnp.dtype
    """That of the hidden states."""
    counts: bool
    """Whether it is counted how often the target has the largest logit."""
    z_loss: float = 0.0
    """How much the squared logarithm of the softmax's divisor counts in gradients."""

    def logits(self, products: Array) -> Array:
        """Return the logits of products of hidden states and unembedding, (N, U), float32."""
        return products if self.softcap is None else self.softcap * jnp.tanh(products / self.softcap)

    def times_slope(self, values: Array, logits: Array) -> Array:
        """Return `values`, (N, U), times the derivative of each one's logit by its product; 0 at a logit of -inf."""
        if self.softcap is None:
            return values
        return values * (1 - jnp.square(jnp.maximum(logits, -self.softcap) / self.softcap))


class Softmax(NamedTuple):
    """The state of each token's softmax after the entries so far: the largest logit, and the sum of exp(logit -
    largest)."""

    top_N: Array
    sum_N: Array
    entry_N: Array | None
    """The first entry that has the largest logit; None where nothing is counted."""

    @staticmethod
    def empty(tokens: int, settings: LossBlocks) -> Softmax:
        """Return the softmax of no entries."""
        entry_N = jnp.full(tokens, -1, jnp.int32) if settings.counts else None
        return Softmax(jnp.full(tokens, -jnp.finfo(jnp.float32).max), jnp.zeros(tokens), entry_N)

    def add(self, logits_NU: Array, start: Array) -> tuple[Softmax, Array, Array]:
        """Return (the softmax with these entries, which begin at `start`; the factor by which older exponentials
        shrink; exp(logits - largest)) (Milakov et al. 2018)."""
        top_N = jnp.maximum(self.top_N, logits_NU.max(-1))
        exp_NU = jnp.exp(logits_NU - top_N[:, None])
        shrink_N = jnp.exp(self.top_N - top_N)
        entry_N = self.entry_N
        if entry_N is not None:
            entry_N = jnp.where(top_N > self.top_N, start + logits_NU.argmax(-1).astype(jnp.int32), entry_N)
        return Softmax(top_N, self.sum_N * shrink_N + exp_NU.sum(-1), entry_N), shrink_N, exp_NU

    def gradient_factors(self, weights_N: Array, settings: LossBlocks) -> Array:
        """Return the factor of exponentials in gradients, (N,): the weights, and more with a z-loss."""
        if not settings.z_loss:
            return weights_N
        return weights_N * (1 + 2 * settings.z_loss * (jnp.log(self.sum_N) + self.top_N))

    def correct(self, targets_N: Array, weights_N: Array) -> Array:
        """Return the sum of the weights of the targets that have the largest logit, a scalar; 0 if nothing
        is counted."""
        return jnp.float32(0) if self.entry_N is None else jnp.where(self.entry_N == targets_N, weights_N, 0).sum()

    def losses(self, target_N: Array) -> Array:
        """Return the negative log-likelihoods, in nats, of targets with these logits, (N,)."""
        return jnp.log(self.sum_N) + self.top_N - target_N


def target_logits(x_ND: Array, target_ND: Array, settings: LossBlocks) -> Float[Array, " N"]:
    """Return the logit of each token's target, whose row of the unembedding `target_ND` holds."""
    return settings.logits(jnp.einsum("nd,nd->n", x_ND, target_ND, preferred_element_type=jnp.float32))


def block_starts(vocab: int, entries: int) -> Int[Array, " J"]:
    """Return where each block of the vocabulary begins. The last one ends with it and may overlap the one before."""
    blocks = -(-vocab // entries)
    return jnp.minimum(jnp.arange(blocks, dtype=jnp.int32) * entries, vocab - entries)


def over_entries(
    see: Callable[[Sums, Array, Array, Array], tuple[Sums, object]],
    seen: Sums,
    x_ND: Array,
    unembedding_VD: Array,
    settings: LossBlocks,
) -> tuple[Sums, tuple]:
    """Fold `see(seen, start, logits, unembedding)` over blocks of the vocabulary; no entry counts twice: the second
    time its logit is -inf."""
    vocab, entries = unembedding_VD.shape[0], settings.entries
    starts = block_starts(vocab, entries)

    def one(seen: Sums, place: tuple[Array, Array]) -> tuple[Sums, object]:
        start, number = place
        w_UD = jax.lax.dynamic_slice_in_dim(unembedding_VD, start, entries)
        logits_NU = settings.logits(jnp.einsum("nd,ud->nu", x_ND, w_UD, preferred_element_type=jnp.float32))
        if vocab % entries:
            fresh_U = start + jnp.arange(entries) >= number * entries
            logits_NU = jnp.where(fresh_U, logits_NU, -jnp.inf)
        return see(seen, start, logits_NU, w_UD)

    return scan_blocks(one, seen, (starts, jnp.arange(len(starts), dtype=jnp.int32)))


def over_tokens(
    add: Callable[[Sums, Array, Array, Array, Array], Sums],
    sums: Sums,
    hidden_TD: Array,
    targets_T: Array,
    weights_T: Array,
    settings: LossBlocks,
) -> Sums:
    """Fold `add(sums, start, x, targets, weights)` over blocks of tokens, the last filled up with weight 0."""
    tokens, block = hidden_TD.shape[0], settings.tokens
    blocks = -(-tokens // block)
    if rest := blocks * block - tokens:
        hidden_TD = jnp.pad(hidden_TD, ((0, rest), (0, 0)))
        targets_T, weights_T = jnp.pad(targets_T, (0, rest)), jnp.pad(weights_T, (0, rest))

    def one(sums: Sums, start: Array) -> tuple[Sums, None]:
        parts = (jax.lax.dynamic_slice_in_dim(a, start, block) for a in (hidden_TD, targets_T, weights_T))
        return add(sums, start, *parts), None

    return scan_blocks(one, sums, jnp.arange(blocks, dtype=jnp.int32) * block)[0]


def scan_blocks(step: Callable, carry: Sums, over: object) -> tuple[Sums, tuple]:
    """Return the result of `jax.lax.scan`, without a loop if there is only one step."""
    if jax.tree.leaves(over)[0].shape[0] > 1:
        return jax.lax.scan(step, carry, over)
    carry, output = step(carry, jax.tree.map(lambda x: x[0], over))
    return carry, jax.tree.map(lambda x: x[None], output)
