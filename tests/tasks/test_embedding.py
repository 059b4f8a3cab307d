"""Vectors of texts: the losses of sentence-transformers by their definitions, pooling, padding and several devices."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paired_rows import padded, sums
from test_preference_losses import LENGTH, SPEC, VOCAB
from test_reward import batch_of, pairs

from trainkit import models
from trainkit.recipe.sections.embedding_task import Embedding
from trainkit.tasks import build
from trainkit.tasks.embedding import pool
from trainkit.tasks.statistics import values_of

KEYS = {
    "plain": {},
    "negatives": {"temperature": 0.1},
    "symmetric": {"symmetric": True, "temperature": 0.1},
    "matryoshka": {"dimensions": (16, 4), "dimension_weights": (1.0, 0.5), "pooling": "last"},
}


def fresh():
    size = {"vocab_size": VOCAB, "sequence_length": LENGTH + 1}
    return models.build(SPEC, **size, implementation="xla", key=jax.random.key(0))


def examples(name: str, count: int = 6) -> dict[str, np.ndarray]:
    """Pairs, with two hard negatives each where the name says so."""
    made = pairs(count=count)
    if "negatives" not in name:
        return made
    more = pairs(seed=1, count=count)
    return {key: np.concatenate([made[key], more[key]], 1) for key in ("tokens", "filled")}


def ranked(queries: np.ndarray, texts: np.ndarray, keys: dict) -> float:
    """MultipleNegativesRankingLoss, or its symmetric form, within MatryoshkaLoss, in float64; the first texts are the
    positives."""

    def entropy(scores: np.ndarray) -> float:
        top = scores.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(scores - top).sum(1)) + top[:, 0] - np.diagonal(scores)))

    total, sizes = 0.0, keys.get("dimensions", (queries.shape[1],))
    for size, weight in zip(sizes, keys.get("dimension_weights", (1.0,) * len(sizes)), strict=True):
        one, other = (v[:, :size] / np.linalg.norm(v[:, :size], axis=1, keepdims=True) for v in (queries, texts))
        scores = one @ other.T / keys.get("temperature", 0.05)
        loss = (entropy(scores) + entropy(scores.T)) / 2 if keys.get("symmetric") else entropy(scores)
        total += weight * loss
    return total


@pytest.mark.parametrize("name", KEYS)
def test_the_loss_is_that_of_sentence_transformers(name: str) -> None:
    task, model, made = build(Embedding(type="embedding", **KEYS[name])), fresh(), examples(name)
    batch = batch_of(made)
    found = eqx.filter_jit(task.loss)(model, batch)
    pooling, vectors = KEYS[name].get("pooling", "mean"), np.zeros((*made["filled"].shape, 16))
    for pair in range(6):
        for side in range(made["filled"].shape[1]):  # each text by itself, without padding
            used = made["filled"][pair, side]
            hidden = np.asarray(
                model.hidden_states(jnp.asarray(made["tokens"][pair, side, :used])[None])[0][0], np.float64
            )
            vectors[pair, side] = hidden.mean(0) if pooling == "mean" else hidden[-1]
    texts = np.concatenate([vectors[:, side] for side in range(1, vectors.shape[1])])
    np.testing.assert_allclose(found.sum / found.weight, ranked(vectors[:, 0], texts, KEYS[name]), rtol=1e-5)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    similar = unit[:, 0] @ (texts / np.linalg.norm(texts, axis=-1, keepdims=True)).T
    place = 1 + (similar > np.diagonal(similar)[:, None]).sum(1)
    expected = {"recall_at_1": (place == 1).mean(), "recall_at_10": (place <= 10).mean(), "mrr": (1 / place).mean()}
    assert values_of(found.metrics) == pytest.approx(expected, rel=1e-5)


def test_vectors_that_are_not_finite_find_nothing() -> None:
    batch, model = batch_of(pairs(count=3)), fresh()
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan) if eqx.is_inexact_array(leaf) else leaf, model)
    found = values_of(build(Embedding(type="embedding")).loss(broken, batch).metrics)
    assert (found["recall_at_1"], found["mrr"]) == (0, 0.25)


def test_pooling_leaves_padding_out() -> None:
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)
    segments = jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    np.testing.assert_allclose(pool(hidden, segments, "mean")[0], hidden[0, :3].mean(0), rtol=1e-6)
    assert jnp.array_equal(pool(hidden, segments, "last"), jnp.stack([hidden[0, 2], hidden[1, 4]]))
    assert jnp.array_equal(pool(hidden, segments, "first"), hidden[:, 0])


def test_rows_of_padding_and_eight_devices_find_the_same_negatives() -> None:
    task, batch, model = build(Embedding(type="embedding", symmetric=True)), batch_of(examples("negatives")), fresh()

    whole, other = sums(task, model, batch), sums(task, model, padded(batch), devices=8)
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=max(2e-5, 1e-6 * np.abs(one).max()))
    assert whole[0].weight == 6 and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole))
