"""MPT against its definition, written out without jax."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from trainkit import models
from trainkit.models.gpt import slopes
from trainkit.models.stack import LanguageModel
from trainkit.recipe.families.mpt import Mpt

VOCAB, LENGTH = 53, 12
SPEC = Mpt(layers=2, hidden=24, heads=3, layer_norm_eps=1e-3)


def fresh(spec: Mpt) -> LanguageModel:
    return models.build(spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="cudnn", key=jax.random.key(0))


def model(spec: Mpt = SPEC) -> LanguageModel:
    """With weights large enough that every part of it shows in the result."""
    random = np.random.default_rng(1)

    def other(leaf: jax.Array) -> jax.Array:
        norm = jnp.asarray(1 + 0.3 * random.standard_normal(leaf.shape), jnp.float32)
        return 8 * leaf if float(leaf.std()) > 0 else norm

    return jax.tree.map(other, fresh(spec))


def written_out(model: LanguageModel, spec: Mpt, tokens: np.ndarray) -> np.ndarray:
    """Logits of one text, in float64."""
    k, t = spec.key_width, len(tokens)
    distance = np.arange(t)[:, None] - np.arange(t)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + spec.layer_norm_eps) * weight

    x = np.asarray(model.token_embedding, np.float64)[tokens]
    for layer in range(spec.layers):
        block = jax.tree.map(lambda leaf, layer=layer: np.asarray(leaf[layer], np.float64), model.blocks)
        qkv = norm(x, block.attention_norm.weight) @ block.attention.qkv.weight
        limit = spec.clip_qkv or math.inf
        q, key, v = np.split(np.clip(qkv, -limit, limit), 3, axis=-1)
        heads = []
        for h in range(spec.heads):
            part = slice(h * k, (h + 1) * k)
            scores = (
                q[:, part] @ key[:, part].T * (spec.softmax_scale or k**-0.5) - float(slopes(spec.heads)[h]) * distance
            )
            weights = np.where(distance >= 0, np.exp(scores), 0)
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        x = x + np.concatenate(heads, -1) @ block.attention.output.weight
        inner = norm(x, block.mlp_norm.weight) @ block.mlp_in.weight
        x = x + inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) @ block.mlp_out.weight
    return norm(x, np.asarray(model.final_norm.weight, np.float64)) @ np.asarray(model.output_matrix(), np.float64).T


@pytest.mark.parametrize(
    "change",
    [{}, {"tied": False, "expansion_ratio": 2}, {"clip_qkv": 0.5}, {"softmax_scale": 0.1, "heads": 6}],
    ids=lambda change: ", ".join(change) or "as it is",
)
def test_its_logits_are_those_of_the_definition(change: dict) -> None:
    spec = SPEC.model_copy(update=change)
    mpt, tokens = model(spec), np.random.default_rng(0).integers(0, VOCAB, LENGTH)
    expected = written_out(mpt, spec, tokens)
    logits = mpt.logits(mpt.hidden_states(jnp.asarray(tokens)[None])[0][0])
    np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())


def test_slopes_halve_from_head_to_head_and_are_never_the_same_twice() -> None:
    np.testing.assert_allclose(slopes(8), [2.0**-i for i in range(1, 9)])
    # of 4, the next power of two: numbers 2 and 4, then 1
    np.testing.assert_allclose(slopes(3), [2.0**-4, 2.0**-8, 2.0**-2])
    np.testing.assert_allclose(slopes(1), [2.0**-8])
    for heads in range(1, 70):
        found = slopes(heads)
        assert len(set(found.tolist())) == heads and found.max() < 1 and found.min() >= 2.0**-8


@pytest.mark.parametrize("pieces", [[12], [5, 7], [1] * 12])
def test_with_a_cache_a_text_in_pieces_is_as_the_text_at_once(pieces: list[int]) -> None:
    mpt, tokens = model(), jax.random.randint(jax.random.key(3), (2, LENGTH), 0, VOCAB)
    cache, done, found = mpt.empty_cache(2, LENGTH + 4), 0, []
    for size in pieces:
        positions = jnp.broadcast_to(jnp.arange(done, done + size), (2, size))
        hidden, cache = mpt.hidden_states(tokens[:, done : done + size], positions_BT=positions, cache=cache)
        found.append(hidden)
        done += size
    np.testing.assert_allclose(jnp.concatenate(found, 1), mpt.hidden_states(tokens)[0], atol=2e-5)


def test_documents_in_one_row_are_as_in_rows_of_their_own() -> None:
    mpt, ids = model(), np.random.default_rng(3).integers(0, VOCAB, LENGTH)
    segments = jnp.array([[1] * 5 + [2] * 7])
    positions = jnp.concatenate([jnp.arange(5), jnp.arange(7)])[None]
    together = mpt.hidden_states(jnp.asarray(ids)[None], positions_BT=positions, segments_BT=segments)[0][0]
    apart = [mpt.hidden_states(jnp.asarray(document)[None])[0][0] for document in (ids[:5], ids[5:])]
    np.testing.assert_allclose(together, jnp.concatenate(apart), atol=2e-5)


def test_none_of_its_leaves_is_a_bias() -> None:
    names = jax.tree.leaves(models.leaf_names(fresh(SPEC)))
    assert sorted(names) == [
        "blocks.attention.output.weight", "blocks.attention.qkv.weight", "blocks.attention_norm.weight",
        "blocks.mlp_in.weight", "blocks.mlp_norm.weight", "blocks.mlp_out.weight", "final_norm.weight",
        "token_embedding",
    ]  # fmt: skip


def test_heads_that_do_not_divide_are_an_error_that_names_those_that_do() -> None:
    with pytest.raises(ValidationError, match="heads = 5 does not divide hidden = 24; the nearest that do: 3, 4, 6"):
        Mpt(layers=1, hidden=24, heads=5)
