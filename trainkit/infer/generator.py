"""A model that continues batches of prompts, in chunks of tokens that can be shown as they arrive."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainkit.errors import TrainkitError
from trainkit.infer.generate import (
    NOTHING,
    Decoding,
    TextCodec,
    Transcript,
    bucket,
    decode,
    extend,
    pad_prompts,
    prefill,
    resize_cache,
)
from trainkit.infer.sampling import Sampling
from trainkit.models.attention import KeyValues
from trainkit.models.stack import LanguageModel

#: Tokens that are computed before the host looks at them: after a stop string, at most this many are wasted.
CHUNK = 16

Reason = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Request:
    """A prompt, and the seed of its continuation."""

    ids: Sequence[int]
    seed: int = 0
    """The same prompt, seed and sampling give the same text, whatever else is continued at the same time."""


@dataclass
class Answer:
    """The text of a request so far."""

    transcript: Transcript
    reason: Reason | None = None
    """Why it ended: an end token, a stop string, or as many tokens as were asked for. None while it continues."""

    @property
    def ids(self) -> list[int]:
        """The tokens, without the one that ended it."""
        return self.transcript.ids

    @property
    def text(self) -> str:
        """Return the text so far."""
        return self.transcript.text


class News(NamedTuple):
    """New text of a request."""

    number: int
    """Of the request."""
    text: str
    answer: Answer


@dataclass
class _Text:
    """What a cache holds: the tokens of one sequence from its beginning."""

    ids: list[int]
    cache: KeyValues


@dataclass
class Generator:
    """Continues prompts with a model. It keeps what it compiles: a program for each bucket of lengths and of rows."""

    model: LanguageModel
    codec: TextCodec
    ends: tuple[int, ...]
    """Tokens that end a text."""
    mesh: Mesh | None = None
    """The devices that the model lies on; one where not given."""
    remembers: bool = False
    """Whether it keeps the keys and values of the last prompt and answer, for a single prompt that begins with the same
    tokens: a conversation repeats them at every turn."""

    def __post_init__(self) -> None:
        self._last: _Text | None = None
        self._prefill = jax.jit(prefill, static_argnames=("cache_length", "sampling"))
        self._extend = jax.jit(extend, donate_argnames="cache")
        self._decode = jax.jit(decode, static_argnames=("tokens", "sampling", "ends"), donate_argnums=1)

    def check(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise TrainkitError if a prompt leaves no room for a token in the model's context."""
        context = self.model.context_length
        for number, ids in enumerate(prompts, 1):
            if len(ids) >= context:
                which = "the prompt" if len(prompts) == 1 else f"prompt {number} of {len(prompts)}"
                problem = f"{which} has {len(ids):,} tokens, and the model's context has {context:,}"
                raise TrainkitError(f"{problem}: there is no room for more", hint="give a shorter one")

    def stream(
        self, requests: Sequence[Request], *, max_tokens: int, sampling: Sampling, stop: Sequence[str] = ()
    ) -> Iterator[News]:
        """Continue all requests together, and yield the new text of each, a few tokens at a time.

        Raises:
            TrainkitError: a prompt leaves no room for a token in the model's context.
        """
        self.check([request.ids for request in requests])
        context = self.model.context_length
        # the final length of each text: a long prompt in the batch does not shorten another text
        most = [min(max_tokens, context - len(request.ids)) for request in requests]
        room = max(len(request.ids) + tokens for request, tokens in zip(requests, most, strict=True))
        answers = [Answer(Transcript(self.codec, request.ids, stop=stop)) for request in requests]
        state, keys_N = self._begin(requests, bucket(room, most=context), sampling)
        going = partial(self._decode, self.model, tokens=CHUNK, sampling=sampling, ends=self.ends)
        made, held = 0, list(requests[0].ids)
        while left := [tokens - made for answer, tokens in zip(answers, most, strict=True) if answer.reason is None]:
            made += (limit := min(CHUNK, *left))
            self._last = None  # its cache is donated
            with self._mesh_context():
                tokens_NT, state = going(state, keys_N, jnp.int32(limit))
            rows = [[token for token in row if token != NOTHING] for row in np.asarray(tokens_NT).tolist()]
            if self.remembers and len(requests) == 1:
                held += rows[0]
                self._last = _Text(held, state.cache)
            for number, (answer, row) in enumerate(zip(answers, rows, strict=False)):
                if answer.reason is None:
                    new = self._take(answer, row, last=made == most[number])
                    yield News(number, new, answer)
            state = self._end_stopped(state, answers)

    def answers(
        self, requests: Sequence[Request], *, max_tokens: int, sampling: Sampling, stop: Sequence[str] = ()
    ) -> list[Answer]:
        """Return the complete answers to all requests. Raises TrainkitError."""
        answers: dict[int, Answer] = {}
        for news in self.stream(requests, max_tokens=max_tokens, sampling=sampling, stop=stop):
            answers[news.number] = news.answer
        return [answers[number] for number in range(len(requests))]

    def _begin(self, requests: Sequence[Request], room: int, sampling: Sampling) -> tuple[Decoding, jax.Array]:
        # rows that fill up the batch have no tokens, so they have ended; the size is a power of two, as with lengths
        size = 1 << (len(requests) - 1).bit_length()
        ids, keys_N = [request.ids for request in requests] + [()] * (size - len(requests)), keys_of(requests, size)
        last, self._last = self._last, None
        # the last token is always read, because its successor is needed
        known = _common(last.ids, ids[0][:-1]) if last is not None and len(requests) == 1 else 0
        rests = [ids[0][known:]] if known else ids
        prompts_NP, lengths_N = pad_prompts(rests, bucket(max(map(len, rests)), most=room))
        prompts_NP, lengths_N, keys_N = self._distribute((prompts_NP, lengths_N, keys_N), size)
        if last is None or not known:
            with self._mesh_context():
                state = self._prefill(self.model, prompts_NP, lengths_N, cache_length=room, sampling=sampling)
            return state, keys_N
        seen_1V = None
        if sampling.penalises:
            seen_1V = np.zeros((1, self.model.output_matrix().shape[0]), bool)
            seen_1V[0, ids[0]] = True
        cache, begins_1 = resize_cache(last.cache, room), np.array([known], np.int32)
        with self._mesh_context():
            return self._extend(self.model, cache, prompts_NP, lengths_N, begins_1, seen_1V), keys_N

    def _take(self, answer: Answer, tokens: list[int], *, last: bool) -> str:
        """Put new tokens to an answer; the text that they add to it."""
        ended = bool(tokens) and tokens[-1] in self.ends
        new = answer.transcript.add(tokens[:-1] if ended else tokens, last=last or ended)
        if answer.transcript.stopped:
            answer.reason = "stop"
        elif ended or last:
            answer.reason = "end" if ended else "length"
        return new

    def _mesh_context(self) -> AbstractContextManager[object]:
        """Return the context in which each device knows its rows, as in training."""
        return nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def _distribute(self, rows: Any, count: int) -> Any:
        """Return arrays of this many sequences, split over all devices if possible."""
        if self.mesh is None:
            return rows
        split = PartitionSpec(self.mesh.axis_names) if count % self.mesh.size == 0 else PartitionSpec()
        return jax.device_put(rows, NamedSharding(self.mesh, split))

    def _end_stopped(self, state: Decoding, answers: Sequence[Answer]) -> Decoding:
        """Return the state without the sequences that a stop string or the context length has ended."""
        if all(answer.reason in (None, "end") for answer in answers):
            return state
        size = len(state.ended_N)
        ended_N = np.array([answer.reason is not None for answer in answers] + [True] * (size - len(answers)))
        return state._replace(ended_N=jax.device_put(ended_N, state.ended_N.sharding))


def keys_of(requests: Sequence[Request], size: int) -> jax.Array:
    """Return a key for each request and each of the rows that fill up to `size`, (size,).

    A key follows from the request's seed and prompt, so that two prompts with the same seed draw differently.
    """
    filled = [*requests, *[Request(())] * (size - len(requests))]
    seeds = np.array([request.seed for request in filled], np.uint32)
    marks = np.array([zlib.crc32(np.array(request.ids, "<i4").tobytes()) for request in filled], np.uint32)
    return jax.vmap(lambda seed, mark: jax.random.fold_in(jax.random.key(seed), mark))(seeds, marks)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
