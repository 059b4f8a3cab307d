"""Generation in static shapes: a prefill of padded prompts, then tokens one by one until all sequences have ended.
Also the text of a sequence while its tokens arrive.

Shapes: N sequences, P positions of the longest prompt's bucket, S positions that the cache has room for, V vocabulary,
T tokens at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from trainkit.infer.sampling import Sampling, draw
from trainkit.models.attention import KeyValues
from trainkit.models.stack import LanguageModel

#: Stands for a token after the end of a sequence.
NOTHING = -1
#: The least bucket: shorter prompts are padded to it.
LEAST_BUCKET = 16


class TextCodec(Protocol):
    """The parts of a tokenizer that generation uses."""

    end_of_text: int

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of a text."""

    def decode(self, ids: Sequence[int], /) -> str:
        """Return the text of ids."""


class Decoding(NamedTuple):
    """The state of sequences between two tokens."""

    logits_NV: Float[Array, "N V"]
    """Of the next token."""
    positions_N: Int[Array, " N"]
    """Where it will stand."""
    ended_N: Bool[Array, " N"]
    drawn: Int[Array, ""]
    """Tokens so far; the key of the next token follows from this number."""
    cache: Any
    """What the model keeps of the tokens before."""
    seen_NV: Bool[Array, "N V"] | None
    """Which tokens a sequence has, where there is a penalty for them."""


def prefill(
    model: LanguageModel,
    prompts_NP: Int[Array, "N P"],
    lengths_N: Int[Array, " N"],
    *,
    cache_length: int,
    sampling: Sampling,
) -> Decoding:
    """Read the prompts, the first `lengths_N` tokens of each row, and return the state; a row of length 0 has ended."""
    n, p = prompts_NP.shape
    seen_NV = None
    if sampling.penalises:
        real_NP = jnp.arange(p) < lengths_N[:, None]
        nothing_NV = jnp.zeros((n, model.output_matrix().shape[0]), bool)
        seen_NV = nothing_NV.at[jnp.arange(n)[:, None], prompts_NP].max(real_NP)
    begins_N = jnp.zeros_like(lengths_N)
    return extend(model, model.empty_cache(n, cache_length), prompts_NP, lengths_N, begins_N, seen_NV)


def extend(
    model: LanguageModel,
    cache: KeyValues,
    rests_NP: Int[Array, "N P"],
    lengths_N: Int[Array, " N"],
    begins_N: Int[Array, " N"],
    seen_NV: Bool[Array, "N V"] | None,
) -> Decoding:
    """Read the first `lengths_N` tokens of each row, before which the cache holds `begins_N` tokens of their texts.

    What the cache holds behind those, and what the padding leaves there, is never visible: each position is overwritten
    before a query reaches it.
    """
    n, p = rests_NP.shape
    # a cache has one place after every prompt: all padding beyond the cache goes there
    places_NP = jnp.minimum(begins_N[:, None] + jnp.arange(p), cache.k_BSGK.shape[2] - 1)
    hidden_NPD, filled = model.hidden_states(rests_NP, positions_BT=places_NP, cache=cache)
    logits_NV = model.logits(hidden_NPD[jnp.arange(n), jnp.maximum(lengths_N - 1, 0)])
    return Decoding(logits_NV, begins_N + lengths_N, lengths_N == 0, jnp.int32(0), filled, seen_NV)


def resize_cache(cache: KeyValues, length: int) -> KeyValues:
    """Return the cache with room for `length` positions; the first keep their contents."""
    had = cache.k_BSGK.shape[2]
    if had >= length:
        return cache if had == length else jax.tree.map(lambda x_LBSGK: x_LBSGK[:, :, :length], cache)
    return jax.tree.map(lambda x_LBSGK: jnp.pad(x_LBSGK, [(0, 0), (0, 0), (0, length - had), (0, 0), (0, 0)]), cache)


def continue_text(model: LanguageModel, token_N: Int[Array, " N"], state: Decoding) -> tuple[Float[Array, "N V"], Any]:
    """Return the logits after one more token, and the cache with it."""
    hidden_N1D, cache = model.hidden_states(
        token_N[:, None], positions_BT=state.positions_N[:, None], cache=state.cache
    )
    return model.logits(hidden_N1D[:, 0]), cache


def decode(
    model: Any,
    state: Decoding,
    keys_N: PRNGKeyArray,
    limit: Int[Array, ""],
    *,
    tokens: int,
    sampling: Sampling,
    ends: tuple[int, ...],
    advance: Callable[[Any, Array, Decoding], tuple[Array, Any]] = continue_text,
    restrict: Callable[[Array, Array, Array], Array] = lambda logits_NV, tokens_NT, count: logits_NV,
) -> tuple[Int[Array, "N T"], Decoding]:
    """Return up to `limit` further tokens of each sequence, in rows of `tokens` with `NOTHING` after the end, and the
    state.

    A sequence ends with one of the tokens `ends`, which is included. `limit` is at most `tokens` and is not static, so
    that the same program serves where fewer tokens are wanted. `advance` computes what follows a token, and
    `restrict` the logits of the next one from the model's, the tokens so far and their number.
    """
    rows_N, ends_E = jnp.arange(len(state.ended_N)), jnp.asarray(ends, jnp.int32)
    nothing_NT = jnp.full((len(rows_N), tokens), NOTHING, jnp.int32)
    if not tokens:  # the prompts fill the context; a loop that never runs is traced, too
        return nothing_NT, state

    def is_unfinished(carry: tuple[Array, Array, Decoding]) -> Array:
        i, _, state = carry
        return (i < limit) & ~state.ended_N.all()

    def add_token(carry: tuple[Array, Array, Decoding]) -> tuple[Array, Array, Decoding]:
        i, tokens_NT, state = carry
        keys_now_N = jax.vmap(jax.random.fold_in, (0, None))(keys_N, state.drawn)
        allowed_NV = restrict(state.logits_NV, tokens_NT, i)
        token_N = draw(allowed_NV, keys_now_N, sampling, seen_NV=state.seen_NV)
        tokens_NT = tokens_NT.at[:, i].set(jnp.where(state.ended_N, NOTHING, token_N))
        ended_N = state.ended_N | jnp.isin(token_N, ends_E)
        logits_NV, cache = advance(model, token_N, state)
        seen_NV = None if state.seen_NV is None else state.seen_NV.at[rows_N, token_N].set(True)
        # sequences that have ended keep their position, so that none leaves the cache
        positions_N = state.positions_N + ~state.ended_N
        return i + 1, tokens_NT, Decoding(logits_NV, positions_N, ended_N, state.drawn + 1, cache, seen_NV)

    _, tokens_NT, state = jax.lax.while_loop(is_unfinished, add_token, (jnp.int32(0), nothing_NT, state))
    return tokens_NT, state


def generate(
    model: LanguageModel,
    prompts_NP: Int[Array, "N P"],
    lengths_N: Int[Array, " N"],
    keys_N: PRNGKeyArray,
    *,
    new_tokens: int,
    sampling: Sampling,
    ends: tuple[int, ...] = (),
) -> Int[Array, "N T"]:
    """Continue each prompt by up to `new_tokens` tokens, in one program, with a cache of just the length for it."""
    room = prompts_NP.shape[1] + new_tokens
    state = prefill(model, prompts_NP, lengths_N, cache_length=room, sampling=sampling)
    limit = jnp.int32(new_tokens)
    return decode(model, state, keys_N, limit, tokens=new_tokens, sampling=sampling, ends=ends)[0]


def bucket(length: int, *, most: int) -> int:
    """Return the power of two that holds `length`, at most `most`: few shapes are compiled."""
    assert length <= most
    return min(most, max(LEAST_BUCKET, 1 << (length - 1).bit_length()))


def pad_prompts(prompts: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts as rows of `width` tokens, (N, P), and their lengths, (N,)."""
    rows = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    return rows, np.array([len(prompt) for prompt in prompts], np.int32)


#: Tokens of the prompt that are decoded too, since some tokenizers write the first word of a text differently.
CONTEXT = 8


class Transcript:
    """The text of one sequence.

    Characters wait until all of their bytes have arrived, and so does what may be the beginning of a stop string. The
    stop string that is complete first ends the text and is not part of it.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int], *, stop: Sequence[str] = ()) -> None:
        self._codec, self._stop = codec, tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._context = list(prompt)[-CONTEXT:]
        self._before = codec.decode(self._context)
        self.ids: list[int] = []
        """Its tokens; where a stop string was found, up to the one that completed it."""
        self._searched = 0
        """How many of them make a text without a stop string, whatever comes after them."""
        self.text = ""
        """The text that `add` has returned."""
        self.stopped = False
        """Whether a stop string was found."""

    def add(self, ids: Sequence[int], *, last: bool = False) -> str:
        """Add tokens and return the text that is complete now; with `last` nothing is held back."""
        if self.stopped:
            return ""
        self.ids += ids
        whole = self._decode(self.ids)
        # incomplete characters
        text = whole if last else whole.rstrip("\ufffd")
        if (end := self._end(text)) is not None:
            self.stopped = True
            fewer = (n for n in range(self._searched + 1, len(self.ids)) if self._stops(self.ids[:n]))
            del self.ids[next(fewer, len(self.ids)) :]
            text = text[:end]
        elif not last:
            if text == whole:
                self._searched = len(self.ids)
            text = text[: len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)]
        if not text.startswith(self.text):
            # some tokenizers write what came before differently while the bytes of a character are coming in
            return ""
        new, self.text = text[len(self.text) :], text
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        return self._codec.decode([*self._context, *ids])[len(self._before) :]

    def _stops(self, ids: Sequence[int]) -> bool:
        return self._end(self._decode(ids).rstrip("\ufffd")) is not None

    def _end(self, text: str) -> int | None:
        """Return where a stop string ends the text: the one that is complete first, however many tokens arrive at a
        time."""
        # earlier text holds none
        begin = max(0, len(self.text) - self._longest)
        places = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop, begin)) >= 0]
        return min(places)[1] if places else None


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
