"""An encoder-decoder of a few numbers, which computes the same with a cache and without: a recurrent network."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray


class ToyCache(eqx.Module):
    """The state of each row."""

    state: Array

    def rows(self, rows):
        return ToyCache(self.state[rows])


class ToySeq2Seq(eqx.Module):
    """The state after token t is tanh(state @ mix + embedding of t); before the first it is the mean of the memory."""

    embedding: Array
    mix: Array
    output: Array
    decoder_start: int = eqx.field(static=True, default=0)

    @staticmethod
    def init(key: PRNGKeyArray, *, vocab: int, hidden: int = 16) -> ToySeq2Seq:
        shapes = (vocab, hidden), (hidden, hidden), (vocab, hidden)
        return ToySeq2Seq(*(jax.random.normal(k, s) for k, s in zip(jax.random.split(key, 3), shapes, strict=True)))

    def encode(self, tokens, segments):
        return self.embedding[tokens]

    def decode(self, tokens, memory, memory_segments):
        def advance(state, token_B):
            state = self._next(state, token_B)
            return state, state

        return jax.lax.scan(advance, self.start(memory, memory_segments, 0).state, tokens.T)[1].swapaxes(0, 1)

    def prediction_states(self, hidden):
        return hidden

    def output_matrix(self):
        return self.output

    def logits(self, states):
        return states @ self.output.T

    def start(self, memory, memory_segments, length, *, beams=1):
        counted = (memory_segments > 0)[..., None]
        mean = (memory * counted).sum(1) / jnp.maximum(counted.sum(1), 1)
        return ToyCache(jnp.repeat(mean, beams, axis=0))

    def step(self, tokens, cache):
        state = cache.state
        for column in range(tokens.shape[1]):
            state = self._next(state, tokens[:, column])
        return self.logits(state), ToyCache(state)

    def _next(self, state, token_B):
        return jnp.tanh(state @ self.mix + self.embedding[token_B])
