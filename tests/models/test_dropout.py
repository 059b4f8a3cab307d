"""Dropout drops what it says, where transformers does, and depends on the seed, the step and the row alone."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODERS, FIXED
from parity import GRADIENT, _as_tensors, _read
from reference import PADDED, Reference

from trainkit import models
from trainkit.hub.config import config_of, family_of, spec_of
from trainkit.models.adapters import adapt
from trainkit.models.dropout import Dropout, has_dropout, with_keys
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import Deberta
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.llama import Llama
from trainkit.recipe.sections.adapter import Lora
from trainkit.tasks.causal_lm import CausalLMTask
from trainkit.train.state import init
from trainkit.train.step import make_step

KEY = jax.random.key(3)
RATES = {"dropout": 0.3, "attention_dropout": 0.2}
SPECS = {
    "bert": Bert(layers=2, hidden=16, heads=2, context_length=16, **RATES),
    "gpt2": Gpt2(layers=2, hidden=16, heads=2, context_length=16, embedding_dropout=0.1, **RATES),
    "llama": Llama(layers=2, hidden=16, heads=2, kv_heads=1, intermediate=24, attention_dropout=0.5),
}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 31, (4, 12)))


def built(spec, **settings):
    return models.build(
        spec, vocab_size=31, sequence_length=16, implementation="blockwise", key=jax.random.key(0), **settings
    )


@eqx.filter_jit
def hidden(model, tokens=TOKENS):
    return model.hidden_and_penalty(tokens, segments_BT=jnp.ones_like(tokens))[0]


def test_the_rate_is_the_share_that_is_dropped_and_the_mean_stays() -> None:
    ones = jnp.ones((8, 64, 64))
    found = np.asarray(with_keys(Dropout(0.3), KEY, jnp.arange(8))(ones))
    assert set(np.unique(found)) == {np.float32(0), np.float32(1) / np.float32(0.7)}
    # of 32,768 draws: five standard deviations
    assert abs((found == 0).mean() - 0.3) < 5 * (0.3 * 0.7 / found.size) ** 0.5
    assert not np.array_equal(found[0], found[1])


def test_in_16_bit_the_mean_stays_too() -> None:
    x = jnp.tile(jnp.linspace(0.5, 1.5, 256, dtype=jnp.bfloat16), (8, 8, 1))
    found = with_keys(Dropout(0.1), KEY, jnp.arange(8))(x).astype(jnp.float32)
    larger = np.asarray(found[found > 0] / x.astype(jnp.float32)[found > 0]).mean()
    np.testing.assert_allclose(larger, 1 / 0.9, rtol=3e-4)


@pytest.mark.parametrize("name", SPECS)
def test_what_is_dropped_of_a_row_depends_on_its_number_alone(name: str) -> None:
    model = built(SPECS[name])
    whole = hidden(with_keys(model, KEY, jnp.arange(4)))
    assert np.abs(whole - hidden(model)).max() > 0.1
    halves = [hidden(with_keys(model, KEY, rows), TOKENS[rows]) for rows in (jnp.arange(2), jnp.arange(2, 4))]
    np.testing.assert_allclose(np.concatenate(halves), whole, atol=1e-5)
    other = hidden(with_keys(model, jax.random.key(4), jnp.arange(4)))
    assert np.abs(other - whole).max() > 0.1


def test_a_block_that_is_computed_again_drops_the_same() -> None:
    def loss(model):
        return jnp.square(hidden(with_keys(model, KEY, jnp.arange(4)))).sum()

    kept, again = (
        eqx.filter_jit(eqx.filter_grad(loss))(built(SPECS["gpt2"], remat=policy)) for policy in ("none", "blocks")
    )
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * max(1, float(jnp.abs(one).max())))


def test_layers_and_places_drop_different_numbers() -> None:
    model = with_keys(built(SPECS["bert"]), KEY, jnp.arange(4))
    keys = [
        node.keys_B
        for node in jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, Dropout))
        if isinstance(node, Dropout)
    ]
    drawn = np.concatenate([np.asarray(jax.random.key_data(key)).reshape(-1, 2) for key in keys if key is not None])
    # three places in each of two layers, and the embeddings, of four rows
    assert len(drawn) == 28 == len(np.unique(drawn, axis=0))


def test_a_rate_of_zero_adds_nothing_to_the_program() -> None:
    spec = SPECS["gpt2"].model_copy(update=dict.fromkeys((*RATES, "embedding_dropout"), 0.0))
    model = built(spec)
    assert not has_dropout(model) and has_dropout(built(SPECS["gpt2"]))
    keyed = with_keys(model, KEY, jnp.arange(4))
    assert jax.tree.structure(keyed) == jax.tree.structure(model)


def test_a_step_drops_the_same_however_its_batch_is_split_and_other_numbers_at_another_step() -> None:
    import optax

    task, spec = CausalLMTask(), SPECS["gpt2"]

    step = jax.jit(
        make_step(
            task=task,
            optimizer=optax.with_extra_args_support(optax.identity()),
            learning_rate=lambda *_: jnp.float32(0),
            compute=jnp.dtype("float32"),
            max_grad_norm=0.0,
        )
    )
    state = init(KEY, model=lambda key: built(spec), optimizer=optax.identity(), compute=jnp.dtype("float32"))
    batch = {"tokens": TOKENS, "targets": TOKENS, "weights": jnp.ones(TOKENS.shape), "filled": jnp.full(4, 12)}

    def losses(accumulation: int) -> list[float]:
        split = {name: array.reshape(accumulation, -1, *array.shape[1:]) for name, array in batch.items()}
        after, first = step(state, split)
        return [float(first["train/loss"]), float(step(after, split)[1]["train/loss"])]

    whole, split = losses(1), losses(2)
    np.testing.assert_allclose(split, whole, rtol=1e-5)
    assert abs(whole[0] - whole[1]) > 1e-3


def test_the_inputs_of_an_adapter_are_dropped_and_with_dora_those_of_the_scaled_base() -> None:
    for variant in ("lora", "dora"):
        model = adapt(
            built(SPECS["llama"].model_copy(update={"attention_dropout": 0.0})),
            Lora(rank=2, dropout=0.5, variant=variant),
            key=KEY,
        )
        assert has_dropout(model)
        layer = jax.tree.map(lambda leaf: leaf[0], with_keys(model, KEY, jnp.arange(4)).blocks.attention.query)
        layer = eqx.tree_at(lambda layer: layer.b, layer, jax.random.normal(KEY, layer.b.shape))
        x = jax.random.normal(KEY, (4, 12, 16))
        dropped, weight, low = layer.dropout(x), layer.base.weight, layer.scale * layer.a @ layer.b
        expected = x @ weight + dropped @ low
        if variant == "dora":
            factor = layer.magnitude.value / jnp.sqrt(jnp.square(weight + low).sum(0))
            expected = x @ weight + (factor - 1) * (dropped @ weight) + factor * (dropped @ low)
        assert float((dropped == 0).mean()) > 0.4
        np.testing.assert_allclose(layer(x), expected, atol=1e-4)


def test_an_adapter_drops_nothing_of_a_table_that_rows_share() -> None:
    spec = Deberta(layers=2, hidden=16, heads=2, context_length=16, position_buckets=8)
    adapted = adapt(built(spec), Lora(rank=2, dropout=0.5), key=KEY)
    model = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(KEY, leaf.shape), adapted)
    # of three rows, which do not divide the table's
    whole = hidden(with_keys(model, KEY, jnp.arange(3)), TOKENS[:3])
    assert np.abs(whole - hidden(model, TOKENS[:3])).max() > 0.01
    last = hidden(with_keys(model, KEY, jnp.arange(2, 3)), TOKENS[2:3])
    np.testing.assert_allclose(last[0], whole[2], atol=1e-5)


# against transformers: dropout multiplies with the share that it keeps, on both sides

HEADS = [
    (
        "bert",
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3},
        ("sequence", "token"),
    ),
    ("roberta", {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}, ("sequence",)),
    ("distilbert", {"dropout": 0.1, "attention_dropout": 0.2, "seq_classif_dropout": 0.3}, ("sequence",)),
    (
        "modernbert",
        {"attention_dropout": 0.1, "embedding_dropout": 0.2, "mlp_dropout": 0.3, "classifier_dropout": 0.4},
        ("sequence",),
    ),
    (
        "deberta-v3",
        {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "cls_dropout": 0.3},
        ("sequence", "token"),
    ),
    ("gpt2", {"resid_pdrop": 0.1, "embd_pdrop": 0.2, "attn_pdrop": 0.3}, ("sequence",)),
    ("llama", {"attention_dropout": 0.3}, ("sequence",)),
]


@pytest.mark.parametrize(("name", "rates", "head"), [(n, rates, head) for n, rates, heads in HEADS for head in heads])
def test_dropout_stands_where_transformers_has_it(
    name: str, rates: dict[str, float], head: str, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_head_parity import CLASSES, LABELS, NEAR, SIZE, TASKS

    config = (ENCODERS | {name: fixed.config | {"pad_token_id": 0} for name, fixed in FIXED.items()})[name] | rates
    asked = {"seed": 5, "size": SIZE, "padded": PADDED, "pairs": False, "labels": LABELS[head], "classes": CLASSES}
    expected = reference.make_classifier(tmp_path, config, head=head, thinned=True, **asked)
    monkeypatch.setattr(Dropout, "is_on", property(lambda self: self.rate > 0))
    monkeypatch.setattr(Dropout, "__call__", lambda self, x: x * (1 - self.rate))
    length = SIZE[1]
    batch = {
        "tokens": jnp.asarray(expected["tokens"]),
        "filled": jnp.asarray([length - PADDED, length, length]),
        "second": jnp.zeros(SIZE, jnp.uint8),
        "labels": jnp.asarray(LABELS[head]),
    }

    def loss(model):
        found = TASKS[head].loss(model, batch)
        return found.sum / found.weight

    model = _read(tmp_path)
    value, gradients = eqx.filter_jit(eqx.filter_value_and_grad(loss))(model)
    assert abs(value - expected["loss"]) < NEAR * expected["loss"]
    theirs = {tensor: numbers for tensor, numbers in expected.items() if tensor.startswith(GRADIENT)}
    ours = _as_tensors(tmp_path, model, gradients)
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    assert max(np.abs(ours[tensor] - theirs[tensor]).max() for tensor in ours) < NEAR * largest


@pytest.mark.parametrize("name", SPECS)
def test_rates_come_back_from_an_export(name: str) -> None:
    config = config_of(SPECS[name], vocab_size=31, sequence_length=16, dtype="float32")
    found = spec_of(config, family_of(config, where=""), where="")
    for key in {"dropout", "attention_dropout", "embedding_dropout"} & type(found).model_fields.keys():
        assert getattr(found, key) == getattr(SPECS[name], key)
