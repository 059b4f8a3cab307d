"""Every encoder, and masked language modelling with it, computes what transformers computes, in float32: logits, loss,
accuracy and gradients, with padding and pairs of texts."""

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

from trainkit import models
from trainkit.models.encoder import EncoderModel
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import Deberta
from trainkit.recipe.families.encoder import TextEncoder
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.sections.task import MaskedLM
from trainkit.tasks.masked_lm import MaskedLMTask, MaskedTokens


class Paired(eqx.Module):
    """An encoder with the types of the reference's pairs, which batches of plain text have not."""

    model: EncoderModel
    types_BT: jax.Array

    def hidden(self, tokens_BT, **more):
        return self.model.hidden(tokens_BT, types_BT=self.types_BT, **more)

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_computes_what_the_reference_does(name: str, reference: Reference, tmp_path: Path) -> None:
    expected = reference.make_encoder(tmp_path, ENCODERS[name], seed=3, size=(2, 24), padded=PADDED)
    tokens = jnp.asarray(expected["tokens"])
    length = tokens.shape[1]
    filled = jnp.asarray([length - PADDED, length])
    real = np.arange(length) < np.asarray(filled)[:, None]
    types = jnp.broadcast_to(jnp.arange(length) >= length // 2, tokens.shape).astype(jnp.int32)
    weights = jnp.asarray((np.arange(length) % 3 == 0) * real, jnp.float32)
    task = MaskedLMTask(MaskedLM(type="masked-lm"), vocab_size=tokens.max() + 1, mask=4)

    def loss(model):
        paired = Paired(model, types)
        found = task.loss_of(paired, {"tokens": tokens, "filled": filled}, MaskedTokens(tokens, weights))
        logits = model.logits(paired.hidden(tokens, segments_BT=jnp.asarray(real, jnp.int32)))
        return found.sum / found.weight, (logits, found.metrics["accuracy"])

    model = _read(tmp_path)
    (value, (logits, accuracy)), gradients = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))(model)
    assert np.abs(np.asarray(logits) - expected["logits"])[real].max() < NEAR * np.abs(expected["logits"]).max()
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    right = (expected["logits"].argmax(-1) == expected["tokens"]) & (np.asarray(weights) > 0)
    assert float(accuracy.sum) == right.sum() and float(accuracy.weight) == weights.sum()
    theirs = {tensor: numbers for tensor, numbers in expected.items() if tensor.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    compared = theirs.keys() & ours.keys()
    assert len(compared) >= 29
    assert all(np.abs(ours[tensor] - theirs[tensor]).max() < NEAR * largest for tensor in compared)


@pytest.mark.parametrize("head", [TOKENS, Head("sequence", 3), Head("token", 3)], ids=lambda head: head.kind)
@pytest.mark.parametrize("family", [Bert, ModernBert, Deberta], ids=lambda family: family.__name__)
def test_the_closed_form_of_an_encoder_is_its_pytree(family: type[TextEncoder], head: Head) -> None:
    spec = family(layers=2, hidden=24, heads=3).with_head(head)
    real = jax.eval_shape(
        lambda key: models.build(spec, vocab_size=31, sequence_length=16, implementation="xla", key=key),
        jax.random.key(0),
    )
    names = jax.tree.leaves(models.leaf_names(real))
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(real), strict=True)}
    assert spec.leaf_shapes(vocab_size=31, sequence_length=16) == shapes


def test_flops_of_modernbert_count_the_positions_that_each_layer_sees() -> None:
    spec, length = ModernBert(layers=4, hidden=16, heads=2, window=8), 32
    apart = np.abs(np.arange(length)[:, None] - np.arange(length))
    pairs = sum(apart.size if layer % 3 == 0 else (apart <= 4).sum() for layer in range(4))
    assert spec.attention_flops_per_token(sequence_length=length) == 4 * 16 * pairs // length
