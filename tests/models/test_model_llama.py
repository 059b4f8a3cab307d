"""Llama against its definition, written out without jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from trainkit import models
from trainkit.models.stack import LanguageModel
from trainkit.recipe.families.llama import Llama
from trainkit.tasks.causal_lm import CausalLMTask

VOCAB, LENGTH = 59, 12
SPEC = Llama(layers=2, hidden=24, heads=6, kv_heads=2, intermediate=40, rope_theta=500.0, rms_norm_eps=1e-3)


def model(spec: Llama = SPEC, *, scale: float = 8.0) -> LanguageModel:
    """With weights large enough that every part of it shows in the result."""
    fresh = models.build(
        spec, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", key=jax.random.key(0)
    )
    random = np.random.default_rng(1)

    def other(leaf: jax.Array) -> jax.Array:
        norm = jnp.asarray(1 + 0.3 * random.standard_normal(leaf.shape), jnp.float32)
        return scale * leaf if float(leaf.std()) > 0 else norm

    return jax.tree.map(other, fresh)


def written_out(model: LanguageModel, spec: Llama, tokens: list[int]) -> np.ndarray:
    """Logits of one text, position by position, in float64."""
    k = spec.key_width

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean() + spec.rms_norm_eps) * weight

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        angles = position * spec.rope_theta ** (-2 * np.arange(k // 2) / k)
        pairs = (x[: k // 2] + 1j * x[k // 2 :]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag])

    x = [np.asarray(model.token_embedding, np.float64)[token] for token in tokens]
    for layer in range(spec.layers):
        block = jax.tree.map(lambda leaf, layer=layer: np.asarray(leaf[layer], np.float64), model.blocks)
        attention = block.attention
        inner = [norm(row, block.attention_norm.weight) for row in x]
        queries, keys, values = (
            [(row @ linear.weight).reshape(-1, k) for row in inner]
            for linear in (attention.query, attention.key, attention.value)
        )
        keys = [np.array([turned(head, t) for head in row]) for t, row in enumerate(keys)]
        for t in range(len(x)):
            heads = []
            for h in range(spec.heads):
                group = h // (spec.heads // spec.groups)
                scores = np.array([turned(queries[t][h], t) @ keys[s][group] / np.sqrt(k) for s in range(t + 1)])
                weights = np.exp(scores - scores.max())
                heads.append(weights / weights.sum() @ np.array([values[s][group] for s in range(t + 1)]))
            x[t] = x[t] + np.concatenate(heads) @ attention.output.weight
            row = norm(x[t], block.mlp_norm.weight)
            gate = row @ block.mlp.gate.weight
            x[t] = x[t] + (gate / (1 + np.exp(-gate)) * (row @ block.mlp.up.weight)) @ block.mlp.down.weight
    final = np.array([norm(row, np.asarray(model.final_norm.weight, np.float64)) for row in x])
    return final @ np.asarray(model.output_matrix(), np.float64).T


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_its_logits_are_those_of_the_definition(tied: bool, kv_heads: int | None) -> None:
    spec = SPEC.model_copy(update={"tied": tied, "kv_heads": kv_heads})
    llama = model(spec)
    tokens = np.random.default_rng(0).integers(0, VOCAB, LENGTH)
    logits = llama.hidden_states(jnp.asarray(tokens)[None])[0][0] @ llama.output_matrix().T
    np.testing.assert_allclose(logits, written_out(llama, spec, tokens.tolist()), rtol=1e-3, atol=1e-3)


def test_the_cache_has_room_for_the_keys_of_each_group() -> None:
    assert model().empty_cache(2, 9).k_BSGK.shape == (2, 2, 9, 2, 4)


def test_documents_in_one_row_are_as_in_rows_of_their_own() -> None:
    llama, ids = model(), np.random.default_rng(3).integers(0, VOCAB, LENGTH)
    first, second = ids[:5], ids[5:]
    segments = jnp.array([[1] * 5 + [2] * 7])
    positions = jnp.concatenate([jnp.arange(5), jnp.arange(7)])[None]
    together = llama.hidden_states(jnp.asarray(ids)[None], positions_BT=positions, segments_BT=segments)[0][0]
    apart = [llama.hidden_states(jnp.asarray(document)[None])[0][0] for document in (first, second)]
    np.testing.assert_allclose(together, jnp.concatenate(apart), atol=2e-5)


def test_with_fp8_products_it_learns_nearly_the_same() -> None:
    ids = jax.random.randint(jax.random.key(2), (2, LENGTH + 1), 0, VOCAB)
    batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:], "weights": jnp.ones((2, LENGTH))}

    def gradients(fp8: bool) -> tuple[jax.Array, list[jax.Array]]:
        fresh = models.build(
            SPEC, vocab_size=VOCAB, sequence_length=LENGTH, implementation="blockwise", fp8=fp8, key=jax.random.key(0)
        )
        loss, grads = jax.value_and_grad(lambda m: CausalLMTask().loss(m, batch)[0])(models.cast(fresh, jnp.bfloat16))
        return loss, [g.astype(jnp.float32) for g in jax.tree.leaves(grads)]

    (fine_loss, fine), (coarse_loss, coarse) = gradients(False), gradients(True)
    np.testing.assert_allclose(coarse_loss, fine_loss, rtol=0.01)
    assert any((a != b).any() for a, b in zip(coarse, fine, strict=True))
    for a, b in zip(coarse, fine, strict=True):
        assert jnp.vdot(a, b) > 0.98 * jnp.linalg.norm(a) * jnp.linalg.norm(b)


@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        ({"heads": 5}, "heads = 5 does not divide hidden = 24; the nearest that do: 3, 4, 6"),
        ({"kv_heads": 4}, "kv_heads = 4 does not divide heads = 6; the nearest that do: 2, 3, 6"),
        ({"heads": 8, "kv_heads": 8}, "need an even width"),
    ],
)
def test_heads_that_do_not_divide_are_an_error_that_names_those_that_do(wrong: dict[str, int], because: str) -> None:
    with pytest.raises(ValidationError, match=because):
        Llama(**(SPEC.model_dump() | wrong))
