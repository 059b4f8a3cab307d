"""Cross-entropy against a vocabulary, in blocks: the logits of all tokens are never there at once.

Shapes: B batch, T positions, N tokens of a block, D hidden, V vocabulary, J blocks of it, U entries of such a block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from trainkit.models.master_weights import Weight
from trainkit.parallel.mesh import on_own_rows
from trainkit.recipe.families.sizes import tokens_in_block

Sums = TypeVar("Sums")

#: Of how many bytes logits are made at once on a CPU, whose caches then still hold them when they are used; elsewhere
#: products of whole blocks of tokens are faster.
CACHED_BYTES = 2 << 20


def blocked_cross_entropy(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"] | Weight,
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
    *,
    block: int | None = None,
    entries: int | None = None,
    softcap: float | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return (sum of weight x negative log-likelihood of the target in nats, sum of weights), both float32.

    Logits and softmax are float32; with `softcap`, a logit is softcap x tanh(product / softcap) (Gemma Team 2024).
    There are logits of at most `block` tokens (None: `families.sizes.tokens_in_block`), made for `entries` of the
    vocabulary at a time (None: chosen for the device). Where gradients are wanted they are made in the forward pass, so
    that no logit is computed twice (cf. Wijmans et al. 2024). Each device goes through its own rows, and the gradient
    of the unembedding is summed over the devices once, at the end.
    """
    arrays = hidden_BTD, unembedding_VD, targets_BT, weights_BT
    total, weight, _ = _cross_entropy(*arrays, block=block, entries=entries, softcap=softcap, counts=False)
    return total, weight


def blocked_cross_entropy_and_correct(
    hidden_BTD: Float[Array, "B T D"],
    unembedding_VD: Float[Array, "V D"] | Weight,
    targets_BT: Int[Array, "B T"],
    weights_BT: Float[Array, "B T"],
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return what `blocked_cross_entropy` does, and the sum of the weights of the targets that have the largest logit
    (of several largest, the one with the lowest id), float32, from the same logits. This sum has no gradient."""
    return _cross_entropy(
        hidden_BTD, unembedding_VD, targets_BT, weights_BT, block=None, entries=None, softcap=None, counts=True
    )


def _cross_entropy(
    hidden_BTD: Array,
    unembedding_VD: Array | Weight,
    targets_BT: Array,
    weights_BT: Array,
    *,
    block: int | None,
    entries: int | None,
    softcap: float | None,
    counts: bool,
) -> tuple[Array, Array, Array]:
    weights_BT = weights_BT.astype(jnp.float32)

    def sums(hidden_BTD: Array, unembedding_VD: Weight, targets_BT: Array, weights_BT: Array) -> Array:
        vocab, d = unembedding_VD.shape
        tokens = weights_BT.size
        size = min(block or tokens_in_block(tokens=tokens, hidden=d, vocab_size=vocab), tokens)
        at_once = min(entries or entries_at_once(size, vocab), vocab)
        settings = LossBlocks(size, at_once, softcap, hidden_BTD.dtype, counts)
        rounded_VD, master_VD = unembedding_VD.rounded, unembedding_VD.master
        flat = targets_BT.reshape(tokens), weights_BT.reshape(tokens)
        found = _weighted_sums(hidden_BTD.reshape(tokens, d), rounded_VD, master_VD, *flat, settings)
        return jnp.stack(found)[None]

    by_device = on_own_rows(sums, hidden_BTD, Weight.of(unembedding_VD), targets_BT, weights_BT, whole=(1,))
    total, correct = by_device.sum(0)
    return total, weights_BT.sum(), correct


def entries_at_once(tokens: int, vocab: int) -> int:
    """An odd multiple of 16 on a CPU: rows a power of two apart would share the same few lines of its caches."""
    return 16 * (CACHED_BYTES // (4 * 16 * tokens) | 1) if jax.default_backend() == "cpu" else vocab


class LossBlocks(NamedTuple):
    """How many tokens, and how many entries of the vocabulary, are dealt with at once; and what bounds their logits."""

    tokens: int
    entries: int
    softcap: float | None
    dtype: jnp.dtype
    """That of the hidden states."""
    counts: bool
    """Whether it is counted how often the target has the largest logit."""

    def logits(self, products: Array) -> Array:
        return products if self.softcap is None else self.softcap * jnp.tanh(products / self.softcap)

    def times_slope(self, values: Array, logits: Array) -> Array:
        """`values` times the derivative of each one's logit, by the product that it is of; at a logit of -inf, 0."""
        if self.softcap is None:
            return values
        return values * (1 - jnp.square(jnp.maximum(logits, -self.softcap) / self.softcap))


class Softmax(NamedTuple):
    """What the entries seen so far make of each token: the largest logit, and the sum of exp(logit - largest)."""

    top_N: Array
    sum_N: Array
    entry_N: Array | None
    """The first entry that has the largest logit; None where nothing is counted."""

    @staticmethod
    def empty(tokens: int, settings: LossBlocks) -> Softmax:
        entry_N = jnp.full(tokens, -1, jnp.int32) if settings.counts else None
        return Softmax(jnp.full(tokens, -jnp.finfo(jnp.float32).max), jnp.zeros(tokens), entry_N)

    def add(self, logits_NU: Array, start: Array) -> tuple[Softmax, Array, Array]:
        """Return (the softmax of these entries too, which begin at `start`; by what factor older exponentials shrink;
        exp(logits - largest)) (Milakov et al. 2018)."""
        top_N = jnp.maximum(self.top_N, logits_NU.max(-1))
        exp_NU = jnp.exp(logits_NU - top_N[:, None])
        shrink_N = jnp.exp(self.top_N - top_N)
        entry_N = self.entry_N
        if entry_N is not None:
            entry_N = jnp.where(top_N > self.top_N, start + logits_NU.argmax(-1).astype(jnp.int32), entry_N)
        return Softmax(top_N, self.sum_N * shrink_N + exp_NU.sum(-1), entry_N), shrink_N, exp_NU

    def correct(self, targets_N: Array, weights_N: Array) -> Array:
        """Return the sum of the weights of the targets that have the largest logit; 0 where nothing is counted."""
        return jnp.float32(0) if self.entry_N is None else jnp.where(self.entry_N == targets_N, weights_N, 0).sum()

    def losses(self, target_N: Array) -> Array:
        return jnp.log(self.sum_N) + self.top_N - target_N


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _weighted_sums(
    hidden_TD: Array, unembedding_VD: Array, master_VD: Array, targets_T: Array, weights_T: Array, settings: LossBlocks
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the weighted sum of the losses, and that of the correct predictions."""

    def add(sums: tuple, start: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> tuple:
        def see(seen: Softmax, start: Array, logits_NU: Array, w_UD: Array) -> tuple[Softmax, None]:
            return seen.add(logits_NU, start)[0], None

        seen, _ = over_entries(see, Softmax.empty(len(x_ND), settings), x_ND, unembedding_VD, settings)
        losses_N = seen.losses(target_logits(x_ND, unembedding_VD[targets_N], settings))
        total, correct = sums
        return total + (losses_N * weights_N).sum(), correct + seen.correct(targets_N, weights_N)

    return over_tokens(add, (jnp.float32(0), jnp.float32(0)), hidden_TD, targets_T, weights_T, settings)


def _forward(
    hidden_TD: Array, unembedding_VD: Array, master_VD: Array, targets_T: Array, weights_T: Array, settings: LossBlocks
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    dtype = settings.dtype
    # float16 has no room for gradients that have not been multiplied by the scale of the loss yet
    kept = jnp.float32 if dtype == jnp.float16 else dtype

    def add(sums: tuple, start: Array, x_ND: Array, targets_N: Array, weights_N: Array) -> tuple:
        total, correct, dx_TD, dw_VD, losses_T = sums

        def see(seen: tuple, start: Array, logits_NU: Array, w_UD: Array) -> tuple:
            softmax, dx_ND = seen
            softmax, shrink_N, exp_NU = softmax.add(logits_NU, start)
            exp_NU = settings.times_slope(exp_NU, logits_NU).astype(dtype)
            dx_ND = dx_ND * shrink_N[:, None] + jnp.matmul(exp_NU, w_UD, preferred_element_type=jnp.float32)
            return (softmax, dx_ND), (exp_NU, softmax.top_N)

        empty = Softmax.empty(len(x_ND), settings), jnp.zeros(x_ND.shape, jnp.float32)
        (softmax, dx_ND), (exp_JNU, top_JN) = over_entries(see, empty, x_ND, unembedding_VD, settings)
        target_ND = unembedding_VD[targets_N]
        target_N = target_logits(x_ND, target_ND, settings)
        losses_N = softmax.losses(target_N)
        dtarget_N = settings.times_slope(-weights_N, target_N)
        dx_ND = dx_ND * (weights_N / softmax.sum_N)[:, None] + target_ND * dtarget_N[:, None]
        dw_VD = _add_unembedding(dw_VD, x_ND, weights_N, softmax, exp_JNU, top_JN, settings)
        dw_VD = dw_VD.at[targets_N].add(dtarget_N[:, None] * x_ND.astype(jnp.float32))
        return (
            total + (losses_N * weights_N).sum(),
            correct + softmax.correct(targets_N, weights_N),
            jax.lax.dynamic_update_slice_in_dim(dx_TD, dx_ND.astype(kept), start, axis=0),
            dw_VD,
            jax.lax.dynamic_update_slice_in_dim(losses_T, losses_N, start, axis=0),
        )

    tokens, d = hidden_TD.shape
    padded = -(-tokens // settings.tokens) * settings.tokens
    sums = (
        jnp.float32(0),
        jnp.float32(0),
        jnp.zeros((padded, d), kept),
        jnp.zeros(unembedding_VD.shape, jnp.float32),
        jnp.zeros(padded, jnp.float32),
    )
    total, correct, dx_TD, dw_VD, losses_T = over_tokens(add, sums, hidden_TD, targets_T, weights_T, settings)
    return (total, correct), (dx_TD[:tokens], dw_VD, losses_T[:tokens])


def _add_unembedding(
    dw_VD: Array,
    x_ND: Array,
    weights_N: Array,
    softmax: Softmax,
    exp_JNU: Array,
    top_JN: Array,
    settings: LossBlocks,
) -> Array:
    """The gradient of the unembedding, with that of these tokens' sums of exponentials added.

    An exponential, which here has been multiplied with the slope of its logit, becomes a gradient by a factor for its
    token. That stands with the hidden states: there are fewer of them. They are divided by the largest factor for the
    product, for the sake of few bits.
    """
    starts = _starts(dw_VD.shape[0], settings.entries)
    factors_JN = weights_N * jnp.exp(top_JN - softmax.top_N) / softmax.sum_N

    def add(dw_VD: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        start, exp_NU, factor_N = part
        largest = jnp.maximum(jnp.abs(factor_N).max(), jnp.finfo(jnp.float32).tiny)
        scaled_ND = (x_ND * (factor_N / largest)[:, None]).astype(x_ND.dtype)
        dw_UD = jnp.einsum("nu,nd->ud", exp_NU, scaled_ND, preferred_element_type=jnp.float32) * largest
        old_UD = jax.lax.dynamic_slice_in_dim(dw_VD, start, settings.entries)
        return jax.lax.dynamic_update_slice_in_dim(dw_VD, old_UD + dw_UD, start, axis=0), None

    return _scan(add, dw_VD, (starts, exp_JNU, factors_JN))[0]


def _backward(settings: LossBlocks, residuals: tuple[Array, Array, Array], dsums: tuple[Array, Array]) -> tuple:
    dx_TD, dw_VD, losses_T = residuals
    dtotal, _ = dsums
    return (dx_TD * dtotal).astype(settings.dtype), None, dw_VD * dtotal, None, losses_T * dtotal


_weighted_sums.defvjp(_forward, _backward)


def target_logits(x_ND: Array, target_ND: Array, settings: LossBlocks) -> Float[Array, " N"]:
    return settings.logits(jnp.einsum("nd,nd->n", x_ND, target_ND, preferred_element_type=jnp.float32))


def _starts(vocab: int, entries: int) -> Int[Array, " J"]:
    """Where each block of the vocabulary begins. The last one ends with it, and so may overlap the one before."""
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
    starts = _starts(vocab, entries)

    def one(seen: Sums, place: tuple[Array, Array]) -> tuple[Sums, object]:
        start, number = place
        w_UD = jax.lax.dynamic_slice_in_dim(unembedding_VD, start, entries)
        logits_NU = settings.logits(jnp.einsum("nd,ud->nu", x_ND, w_UD, preferred_element_type=jnp.float32))
        if vocab % entries:
            fresh_U = start + jnp.arange(entries) >= number * entries
            logits_NU = jnp.where(fresh_U, logits_NU, -jnp.inf)
        return see(seen, start, logits_NU, w_UD)

    return _scan(one, seen, (starts, jnp.arange(len(starts), dtype=jnp.int32)))


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

    return _scan(one, sums, jnp.arange(blocks, dtype=jnp.int32) * block)[0]


def _scan(step: Callable, carry: Sums, over: object) -> tuple[Sums, tuple]:
    """`jax.lax.scan`, without a loop where there is one turn only."""
    if jax.tree.leaves(over)[0].shape[0] > 1:
        return jax.lax.scan(step, carry, over)
    carry, output = step(carry, jax.tree.map(lambda x: x[0], over))
    return carry, jax.tree.map(lambda x: x[None], output)
