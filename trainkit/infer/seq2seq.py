"""Targets of encoder-decoders: drawn token by token, or searched for with beams.

Shapes: N sources, S positions of the longest one's bucket, T tokens of targets at most, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from trainkit.errors import TrainkitError
from trainkit.infer.beam_search import GREEDY, BeamSearch, search_targets
from trainkit.infer.generate import NOTHING, Decoding, TextCodec, Transcript, bucket, decode, pad_prompts
from trainkit.infer.generator import Answer, Generator, News, Request, keys_of
from trainkit.infer.sampling import Sampling
from trainkit.recipe.families.model import ModelSpec

#: Positions of a source where the model sets no limit.
_NO_LIMIT = 1 << 30


def begin_targets(
    model: Any,
    sources_NS: Int[Array, "N S"],
    lengths_N: Int[Array, " N"],
    *,
    start: int,
    cache_length: int,
    sampling: Sampling,
) -> Decoding:
    """Read the sources, the first `lengths_N` tokens of each row, and return the state before the first token of their
    targets; a row of length 0 has ended."""
    memory_NSD, segments_NS = read_sources(model, sources_NS, lengths_N)
    cache = model.start(memory_NSD, segments_NS, cache_length)
    logits_NV, cache = model.step(jnp.full((len(sources_NS), 1), start, jnp.int32), cache)
    seen_NV = jnp.zeros(logits_NV.shape, bool).at[:, start].set(True) if sampling.penalises else None
    return Decoding(logits_NV, jnp.ones_like(lengths_N), lengths_N == 0, jnp.int32(0), cache, seen_NV)


def continue_target(model: Any, token_N: Int[Array, " N"], state: Decoding) -> tuple[Float[Array, "N V"], Any]:
    """Return the logits after one more token, and the cache with it."""
    logits_NV, cache = model.step(token_N[:, None], state.cache)
    return logits_NV, cache


def start_of(spec: ModelSpec, codec: TextCodec) -> int:
    """Return the token before every target: the model's, or else the tokenizer's end-of-text token."""
    start: int | None = getattr(spec, "decoder_start", None)
    return codec.end_of_text if start is None else start


def read_sources(
    model: Any, sources_NS: Int[Array, "N S"], lengths_N: Int[Array, " N"]
) -> tuple[Float[Array, "N S D"], Int[Array, "N S"]]:
    """Return the memory of sources, and their segments: 1 for tokens, 0 for padding."""
    segments_NS = (jnp.arange(sources_NS.shape[1]) < lengths_N[:, None]).astype(jnp.int32)
    return model.encode(sources_NS, segments_NS), segments_NS


def write_targets(
    model: Any,
    sources_NS: Int[Array, "N S"],
    lengths_N: Int[Array, " N"],
    keys_N: PRNGKeyArray,
    *,
    start: int,
    new_tokens: int,
    sampling: Sampling,
    search: BeamSearch,
    ends: tuple[int, ...],
) -> Int[Array, "N T"]:
    """Return the target of each source, (N, T): up to `new_tokens` tokens after `start`, then `NOTHING`."""
    if search.beams > 1:
        sources = read_sources(model, sources_NS, lengths_N)
        return search_targets(model, *sources, start=start, new_tokens=new_tokens, search=search, ends=ends)
    room = new_tokens + 1
    state = begin_targets(model, sources_NS, lengths_N, start=start, cache_length=room, sampling=sampling)

    def restrict(logits_NV: Array, tokens_NT: Array, count: Array) -> Array:
        return search.rules.apply(logits_NV, tokens_NT, count, start=start, ends=ends)

    tokens_NT, _ = decode(
        model,
        state,
        keys_N,
        jnp.int32(new_tokens),
        tokens=new_tokens,
        sampling=sampling,
        ends=ends,
        advance=continue_target,
        restrict=restrict,
    )
    return tokens_NT


def target_tokens(row: Sequence[int], begin: Sequence[int]) -> list[int]:
    """Return the tokens of a target, without those that begin every text."""
    tokens = [token for token in row if token != NOTHING]
    return tokens[len(begin) :] if tokens[: len(begin)] == list(begin) else tokens


@dataclass
class TargetGenerator(Generator):
    """Writes targets with an encoder-decoder: a request holds the tokens of a source, and the answer is its target."""

    start: int = 0
    """The token before every target."""
    begin: tuple[int, ...] = ()
    """Tokens that every target has learned to begin with, such as BART's `<s>`; they are no part of an answer."""
    context_length: int | None = None
    """The most tokens of a source, and of a target with the token before it; None if the model sets no limit."""
    search: BeamSearch = GREEDY

    def __post_init__(self) -> None:
        super().__post_init__()
        self._write = jax.jit(write_targets, static_argnames=("start", "new_tokens", "sampling", "search", "ends"))

    def check(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise TrainkitError if a source is longer than the model can read."""
        context = self.context_length or _NO_LIMIT
        for number, ids in enumerate(prompts, 1):
            if len(ids) > context:
                which = "the source" if len(prompts) == 1 else f"source {number} of {len(prompts)}"
                problem = f"{which} has {len(ids):,} tokens, and the model reads {context:,}"
                raise TrainkitError(problem, hint="give a shorter one")

    def stream(
        self, requests: Sequence[Request], *, max_tokens: int, sampling: Sampling, stop: Sequence[str] = ()
    ) -> Iterator[News]:
        """Write the targets of all requests together, and yield the whole text of each.

        Raises:
            TrainkitError: a source is longer than what the model reads.
        """
        ids = [request.ids for request in requests]
        self.check(ids)
        context = self.context_length or _NO_LIMIT
        size = 1 << (len(requests) - 1).bit_length()
        width = bucket(max(map(len, ids)), most=context)
        sources_NS, lengths_N = pad_prompts([*ids, *[[]] * (size - len(ids))], width)
        arrays = self._distribute((sources_NS, lengths_N, keys_of(requests, size)), size)
        # the decoder also reads the token before the target
        most = min(max_tokens, context - 1)
        options = {"new_tokens": most, "sampling": sampling, "search": self.search, "ends": self.ends}
        with self._mesh_context():
            tokens_NT = np.asarray(self._write(self.model, *arrays, start=self.start, **options))
        for number, row in enumerate(tokens_NT[: len(requests)].tolist()):
            answer = Answer(Transcript(self.codec, [], stop=stop))
            new = self._take(answer, target_tokens(row, self.begin), last=True)
            yield News(number, new, answer)
