"""Every encoder computes what transformers computes, in float32: logits, loss, gradients, with padding and pairs."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODERS
from parity import GRADIENT, NEAR, _as_tensors, _read
from reference import PADDED, Reference

from trainkit.models.loss import blocked_cross_entropy


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_what_the_reference_does(name: str, reference: Reference, tmp_path: Path) -> None:
    expected = reference.make_encoder(tmp_path, ENCODERS[name], seed=3, size=(2, 24), padded=PADDED)
    tokens = jnp.asarray(expected["tokens"])
    real = np.ones(tokens.shape, np.int32)
    real[0, -PADDED:] = 0
    types = jnp.broadcast_to(jnp.arange(tokens.shape[1]) >= tokens.shape[1] // 2, tokens.shape).astype(jnp.int32)
    weights = jnp.asarray((np.arange(tokens.shape[1]) % 3 == 0) * real, jnp.float32)

    def loss(model):
        hidden = model.hidden(tokens, segments_BT=jnp.asarray(real), types_BT=types)
        states, unembedding = model.prediction_states(hidden), model.unembedding()
        total, weight = blocked_cross_entropy(states, unembedding, tokens, weights)
        return total / weight, model.logits(hidden)

    model = _read(tmp_path)
    (value, logits), gradients = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(model)
    seen = real.astype(bool)
    assert np.abs(np.asarray(logits) - expected["logits"])[seen].max() < NEAR * np.abs(expected["logits"]).max()
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    theirs = {tensor: numbers for tensor, numbers in expected.items() if tensor.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    compared = theirs.keys() & ours.keys()
    assert len(compared) >= 40
    assert all(np.abs(ours[tensor] - theirs[tensor]).max() < NEAR * largest for tensor in compared)


def test_the_closed_form_of_an_encoder_is_its_pytree() -> None:
    from trainkit import models
    from trainkit.recipe.families.bert import Bert

    spec = Bert(layers=2, hidden=24, heads=3)
    real = jax.eval_shape(
        lambda key: models.build(spec, vocab_size=31, sequence_length=16, implementation="xla", key=key),
        jax.random.key(0),
    )
    names = jax.tree.leaves(models.leaf_names(real))
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(real), strict=True)}
    assert spec.leaf_shapes(vocab_size=31, sequence_length=16) == shapes
