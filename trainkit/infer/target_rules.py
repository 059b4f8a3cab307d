"""Rules for the tokens of targets, as `generate` of transformers applies them to the scores of the next token.

Shapes: R targets, T tokens at most, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class TargetRules:
    """Which tokens a target must or must not have. Hashable: a search is compiled separately for each."""

    first: int | None = None
    """The token that every target begins with (`forced_bos_token_id`)."""
    last: int | None = None
    """The token that ends a target of the largest length (`forced_eos_token_id`)."""
    no_repeat: int = 0
    """No sequence of so many tokens occurs twice, the token before the target included (`no_repeat_ngram_size`); 0: any
    may."""
    least: int = 0
    """Tokens before the end of a target (`min_new_tokens`, or `min_length` less the token before the target)."""

    def apply(
        self,
        scores_RV: Float[Array, "R V"],
        tokens_RT: Int[Array, "R T"],
        length: Int[Array, ""],
        *,
        start: int,
        ends: tuple[int, ...],
    ) -> Float[Array, "R V"]:
        """Return the scores of the next token, -inf for tokens that must not follow.

        The targets have `length` tokens, the first ones of `tokens_RT`, and follow the token `start`.
        """
        vocab = scores_RV.shape[1]
        if self.no_repeat:
            scores_RV = jnp.where(_repeats(tokens_RT, length, start, self.no_repeat, vocab), -jnp.inf, scores_RV)
        if self.least and ends:
            is_end_V = jnp.zeros(vocab, bool).at[jnp.asarray(ends)].set(True)
            scores_RV = jnp.where(is_end_V & (length < self.least), -jnp.inf, scores_RV)
        for token, at in ((self.first, 0), (self.last, tokens_RT.shape[1] - 1)):
            if token is not None:
                only_V = jnp.where(jnp.arange(vocab) == token, 0.0, -jnp.inf)
                scores_RV = jnp.where(length == at, only_V, scores_RV)
        return scores_RV


#: Any token may follow.
NO_RULES = TargetRules()


def _repeats(tokens_RT: Array, length: Array, start: int, size: int, vocab: int) -> Array:
    """Return which tokens would complete a sequence of `size` tokens that has occurred, bool (R, V)."""
    all_RS = jnp.pad(tokens_RT, ((0, 0), (1, 0)), constant_values=start)  # S = 1 + T
    places_S = jnp.arange(all_RS.shape[1])
    repeats_RS = jnp.broadcast_to((places_S >= size - 1) & (places_S <= length), all_RS.shape)
    for back in range(1, size):
        # the token `back` places before each place, and before the one that comes next
        before_RS = jnp.roll(all_RS, back, axis=1)
        now_R1 = jax.lax.dynamic_index_in_dim(all_RS, jnp.maximum(length + 1 - back, 0), axis=1)
        repeats_RS &= (before_RS == now_R1) & (length + 1 - back >= 0)
    rows_R1 = jnp.arange(len(all_RS))[:, None]
    completing_RS = jnp.where(repeats_RS & (all_RS >= 0), all_RS, vocab)  # beyond the vocabulary: dropped
    return jnp.zeros((len(all_RS), vocab), bool).at[rows_R1, completing_RS].set(True, mode="drop")
