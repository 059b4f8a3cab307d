"""An adapter on an encoder with a head of classes, on a base in full or in 4 bit: the head and the adapter learn."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainkit import models
from trainkit.models.adapters import adapt, merge, trainable
from trainkit.models.nf4 import Nf4
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import Deberta
from trainkit.recipe.families.encoder import TextEncoder
from trainkit.recipe.families.model import Head
from trainkit.recipe.families.modernbert import ModernBert
from trainkit.recipe.sections.adapter import Lora, trained_shapes
from trainkit.recipe.sections.classification_tasks import SequenceClassification
from trainkit.tasks.sequence_classification import SequenceClassificationTask

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 31, (4, 12)))
BATCH = {
    "tokens": TOKENS,
    "second": jnp.zeros(TOKENS.shape, jnp.uint8),
    "filled": jnp.full(4, 12),
    "labels": jnp.asarray([0, 1, 2, 0]),
}
TASK = SequenceClassificationTask(SequenceClassification(type="sequence-classification", classes=3))


@pytest.mark.parametrize(
    ("family", "base"), [(Bert, "nf4"), (ModernBert, "none"), (Deberta, "nf4")], ids=["bert", "modernbert", "deberta"]
)
def test_the_adapter_and_the_head_learn_and_the_base_does_not(family: type[TextEncoder], base: str) -> None:
    spec, adapter = family(layers=2, hidden=32, heads=2, intermediate=32).with_head(Head("sequence", 3)), Lora(rank=2)
    adapter = adapter.model_copy(update={"base": base})
    built = models.build(spec, vocab_size=31, sequence_length=16, implementation="xla", key=jax.random.key(0))
    model = adapt(built, adapter, key=jax.random.key(1))
    params, frozen = eqx.partition(model, trainable(model))
    packed = jax.tree.leaves(frozen, is_leaf=lambda leaf: isinstance(leaf, Nf4))
    assert any(isinstance(leaf, Nf4) for leaf in packed) == (base == "nf4")

    def loss(params):
        return TASK.loss(eqx.combine(params, frozen), BATCH).sum

    gradients = eqx.filter_jit(eqx.filter_grad(loss))(params)
    names = jax.tree.leaves(models.leaf_names(gradients))
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(gradients), strict=True)}
    assert shapes == trained_shapes(spec, adapter, vocab_size=31, sequence_length=16)
    learned = {name for name, leaf in zip(names, jax.tree.leaves(gradients), strict=True) if float(jnp.abs(leaf).max())}
    # the first matrices of adapters wait for the second ones, which begin at 0
    assert learned == {name for name in names if not name.endswith(".a")}
    scores = [float(TASK.loss(whole, BATCH).sum) for whole in (model, merge(model))]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
