"""Sampling text. Static shapes, so that it compiles once for a model: N prompts, S = the model's context length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from trainkit.models.build import LanguageModel


class TextCodec(Protocol):
    """What generation asks of a tokenizer."""

    end_of_text: int

    def encode(self, text: str, /) -> list[int]: ...
    def decode(self, ids: Sequence[int], /) -> str: ...


def generate(
    model: LanguageModel,
    prompts_NS: Int[Array, "N S"],
    lengths_N: Int[Array, N],
    key: PRNGKeyArray,
    *,
    new_tokens: int,
    temperature: float,
    top_k: int | None,
) -> Int[Array, "N new"]:
    """Continue each prompt, the first `lengths_N` tokens of its row, by `new_tokens` tokens.

    The prompt is run once over the whole padded row; what the padding leaves in the cache is never visible, since every
    position is overwritten before a query reaches it. A temperature of 0 takes the likeliest token.
    """
    n, s = prompts_NS.shape
    unembedding_VD = model.unembedding()

    def choose(hidden_ND: Array, key: PRNGKeyArray) -> Array:
        logits_NV = (hidden_ND @ unembedding_VD.T).astype(jnp.float32)
        if temperature == 0:
            return logits_NV.argmax(-1)
        if top_k is not None and top_k < logits_NV.shape[-1]:
            least_N1 = jax.lax.top_k(logits_NV, top_k)[0][:, -1:]
            logits_NV = jnp.where(logits_NV < least_N1, -jnp.inf, logits_NV)
        return jax.random.categorical(key, logits_NV / temperature)

    positions_NS = jnp.broadcast_to(jnp.arange(s), (n, s))
    hidden_NSD, cache = model.hidden(prompts_NS, positions_BT=positions_NS, cache=model.empty_cache(n, s))
    last_ND = hidden_NSD[jnp.arange(n), lengths_N - 1]

    def one(carry: tuple, i: Array) -> tuple[tuple, Array]:
        hidden_ND, cache = carry
        token_N = choose(hidden_ND, jax.random.fold_in(key, i))
        hidden_N1D, cache = model.hidden(token_N[:, None], positions_BT=(lengths_N + i)[:, None], cache=cache)
        return (hidden_N1D[:, 0], cache), token_N

    _, tokens_TN = jax.lax.scan(one, (last_ND, cache), jnp.arange(new_tokens))
    return tokens_TN.T


def encode_prompts(
    codec: TextCodec, prompts: Sequence[str], *, context_length: int, new_tokens: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Prompts as rows of `context_length` tokens, their lengths, and how many new tokens fit.

    An empty prompt becomes the end-of-text token, after which documents begin. At least one token is generated: of a
    prompt that is too long for that, the end is kept.
    """
    new_tokens = min(new_tokens, context_length - 1)
    rows = np.full((len(prompts), context_length), codec.end_of_text, np.int32)
    lengths = np.empty(len(prompts), np.int32)
    for i, prompt in enumerate(prompts):
        ids = (codec.encode(prompt) or [codec.end_of_text])[-(context_length - new_tokens) :]
        rows[i, : len(ids)] = ids
        lengths[i] = len(ids)
    return rows, lengths, new_tokens


def decode_until_end(codec: TextCodec, ids: Sequence[int]) -> str:
    """The text up to the end-of-text token, if there is one."""
    ids = list(ids)
    return codec.decode(ids[: ids.index(codec.end_of_text)] if codec.end_of_text in ids else ids)
