"""Encoder-decoders: sizes in closed form, decoding step by step, padding, and head with classes."""

from __future__ import annotations

import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import _compiled
from pydantic import ValidationError

from trainkit import models
from trainkit.hub import adapter_config, peft
from trainkit.models.adapters import adapt, adapted_layers, trainable
from trainkit.models.dropout import with_keys
from trainkit.models.encoder_decoder import EncoderDecoderModel
from trainkit.models.master_weights import in_compute_dtype
from trainkit.parallel import mesh
from trainkit.recipe.families.bart import Bart
from trainkit.recipe.families.encoder_decoder import EncoderDecoder
from trainkit.recipe.families.model import Head
from trainkit.recipe.families.t5 import T5
from trainkit.recipe.sections.adapter import Lora, adapter_shapes
from trainkit.recipe.sections.task import Seq2Seq
from trainkit.tasks.seq2seq import Seq2SeqTask

VOCAB, LENGTH = 61, 10
_SIZES: dict[str, Any] = {"layers": 2, "decoder_layers": 3, "hidden": 16, "heads": 2, "decoder_start": 0}
SPECS: dict[str, EncoderDecoder] = {
    "t5": T5(**_SIZES, head_width=6, position_buckets=6, position_distance=5, gated=True, tied=False),
    "bart": Bart(**_SIZES, scale_embedding=True),
}


def build(spec: EncoderDecoder, key: jax.Array, *, vocab: int = VOCAB, length: int = LENGTH) -> EncoderDecoderModel:
    made: EncoderDecoderModel = models.build(
        spec, vocab_size=vocab, sequence_length=length, implementation="blockwise", key=key
    )
    return made


def model(name: str) -> EncoderDecoderModel:
    """With numbers in which every part shows."""
    random = np.random.default_rng(1)
    fresh = build(SPECS[name], jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(0.2 * random.standard_normal(leaf.shape), leaf.dtype), fresh)


def tokens(rows: int, seed: int, length: int = LENGTH) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, length), 0, VOCAB)


@st.composite
def any_spec(draw: st.DrawFn) -> EncoderDecoder:
    heads = draw(st.integers(1, 4))
    sizes = {
        "layers": draw(st.integers(1, 3)),
        "decoder_layers": draw(st.none() | st.integers(1, 3)),
        "heads": heads,
        "hidden": heads * draw(st.integers(1, 6)),
        "intermediate": draw(st.none() | st.integers(1, 40)),
        "context_length": draw(st.none() | st.integers(1, 64)),
    }
    if draw(st.booleans()):
        return Bart(**sizes)
    width = draw(st.none() | st.integers(1, 9))
    return T5(**sizes, head_width=width, gated=draw(st.booleans()), tied=draw(st.booleans()))


@settings(max_examples=15, deadline=None)
@given(any_spec(), st.integers(2, 90), st.integers(1, 32))
def test_the_closed_form_is_the_real_pytree(spec: EncoderDecoder, vocab: int, length: int) -> None:
    real = jax.eval_shape(lambda key: build(spec, key, vocab=vocab, length=length), jax.random.key(0))
    names = jax.tree.leaves(models.leaf_names(real))
    shapes = {name: leaf.shape for name, leaf in zip(names, jax.tree.leaves(real), strict=True)}
    assert spec.leaf_shapes(vocab_size=vocab, sequence_length=length) == shapes
    matrices = sum(leaf.size for leaf in jax.tree.leaves(real.blocks) if leaf.ndim == 3)
    # half of the positions are of sources, and half of targets, which read the sources' keys and values
    assert spec.matmul_parameters(vocab_size=vocab) == (matrices + vocab * spec.hidden) // 2


@pytest.mark.parametrize("name", SPECS)
def test_decoding_step_by_step_is_decoding_at_once(name: str) -> None:
    """Two rows read each source, which the cache has once."""
    seq, sources, targets = model(name), tokens(2, 2, length=8), tokens(4, 3)
    segments = jnp.ones(sources.shape, jnp.int32).at[0, 5:].set(0)

    @_compiled
    def at_once(model: EncoderDecoderModel) -> tuple[jax.Array, Any]:
        memory = model.encode(sources, segments)
        of_rows = (jnp.repeat(array, 2, axis=0) for array in (memory, segments))
        return model.logits(model.decode(targets, *of_rows)), model.start(memory, segments, LENGTH, beams=2)

    whole, empty = at_once(seq)
    step = _compiled(seq.step)
    found, cache = step(targets[:, :4], empty)
    np.testing.assert_allclose(found, whole[:, 3], atol=1e-4)
    for at in range(4, LENGTH):
        # once the rows of a source change places, as beams do
        if at == 6:
            order = jnp.array([1, 0, 2, 2])
            found, _ = step(targets[order, at : at + 1], cache.rows(order))
            np.testing.assert_allclose(found, whole[order, at], atol=1e-4)
        found, cache = step(targets[:, at : at + 1], cache)
    np.testing.assert_allclose(found, whole[:, -1], atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_what_is_padding_of_a_source_or_later_in_a_target_changes_nothing(name: str) -> None:
    seq, sources, targets = model(name), tokens(2, 4), tokens(2, 5)
    segments = jnp.ones(sources.shape, jnp.int32).at[:, 7:].set(0)

    @_compiled
    def hidden(sources: jax.Array, segments: jax.Array, targets: jax.Array) -> jax.Array:
        return seq.decode(targets, seq.encode(sources, segments), segments)

    expected = hidden(sources[:, :7], segments[:, :7], targets)
    np.testing.assert_allclose(hidden(sources, segments, targets), expected, atol=1e-5)
    np.testing.assert_allclose(hidden(sources, segments, targets.at[:, 6:].set(1))[:, :6], expected[:, :6], atol=1e-5)
    assert np.abs(hidden(sources.at[:, 6].add(1), segments, targets) - expected).max() > 1e-3


def test_a_head_with_classes_needs_the_token_that_the_decoder_begins_with() -> None:
    with pytest.raises(ValueError, match="decoder_start is missing"):
        Bart(layers=1, hidden=8, heads=2).with_head(Head("sequence", 2))


def test_distances_that_leave_no_buckets_are_refused() -> None:
    with pytest.raises(ValidationError, match="position_distance = 16 must be more than half of position_buckets = 32"):
        T5(layers=1, hidden=8, heads=2, position_distance=16)


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        ("all-linear", 18),
        (("query", "value"), ["q", "v"]),
        (("cross.query",), ["EncDecAttention.q"]),
        (("encoder.attention.*",), r"encoder\.block\.\d+\.layer\.0\.SelfAttention\.q|"),
    ],
)
def test_an_adapter_has_layers_of_both_stacks_and_is_read_as_peft_has_it(targets: Any, named: Any, tmp_path) -> None:
    spec, adapter = SPECS["t5"].model_copy(update={"pretrained": "base"}), Lora(targets=targets, rank=2)
    adapted = adapt(model("t5"), adapter, key=jax.random.key(0))
    trained = eqx.filter(adapted, trainable(adapted))
    found = dict(zip(jax.tree.leaves(models.leaf_names(trained)), jax.tree.leaves(trained), strict=True))
    assert {name: leaf.shape for name, leaf in found.items()} == adapter_shapes(adapter, spec)
    peft.save(tmp_path, adapted, spec, adapter)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_2_SEQ_LM"
    modules = config["target_modules"]
    if isinstance(named, int):
        assert len(adapter_config.names(spec)) == len(adapted_layers(adapted)) == named
    else:
        assert modules == named if isinstance(named, list) else modules.startswith(named)
    again = adapter_config.read(tmp_path, spec)
    assert set(again.targets) == set(adapted_layers(adapted))
    numbers = peft.read(tmp_path, adapted, spec)
    assert all(np.array_equal(numbers[name]["a"], layer.a) for name, layer in adapted_layers(adapted).items())


def batch() -> dict[str, jax.Array]:
    """8 sources of up to 9 tokens, and targets of up to 10."""
    filled = jnp.stack([jnp.arange(8) % 5 + 5, jnp.arange(8) % 3 + 8], axis=1)
    inside = jnp.arange(LENGTH) < filled[..., None]
    both = jnp.stack([tokens(8, 6), tokens(8, 7)], axis=1)
    return {"tokens": both * inside, "weights": (inside * jnp.array([0, 1])[:, None]).astype(float), "filled": filled}


@_compiled
def trained(masters: Any, of: dict[str, jax.Array], compute: Any) -> tuple[jax.Array, Any]:
    def loss(masters: Any) -> jax.Array:
        model = with_keys(in_compute_dtype(masters, jnp.dtype(compute)), jax.random.key(5), jnp.arange(8))
        found = Seq2SeqTask(Seq2Seq(type="seq2seq"), end_of_text=0).loss(model, of)
        return found.sum / found.weight

    return eqx.filter_value_and_grad(loss)(masters)


def test_eight_devices_compute_what_one_does_and_drop_the_same() -> None:
    spec = T5(**_SIZES | {"hidden": 64, "heads": 4}, dropout=0.2)
    fresh, of = build(spec, jax.random.key(2)), batch()
    on = mesh.make_mesh(data=2, fsdp=4)
    shared = jax.device_put(fresh, mesh.shardings(on, jax.eval_shape(lambda: fresh)))
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(shared))
    one, single = trained(fresh, of, "float32")
    with jax.set_mesh(on):
        rows = jax.device_put(of, jax.NamedSharding(on, jax.P(on.axis_names)))
        eight, split = trained(shared, rows, "float32")
    assert float(eight) == pytest.approx(float(one), rel=1e-5)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(single))
    for a, b in zip(jax.tree.leaves(single), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), atol=1e-5 * largest)


@pytest.mark.parametrize("name", SPECS)
def test_in_16_bit_gradients_are_float32_and_near_those_of_32(name: str) -> None:
    fresh, of = build(SPECS[name], jax.random.key(2)), batch()
    (exact, expected), (loss, found) = (trained(fresh, of, dtype) for dtype in ("float32", "bfloat16"))
    assert abs(loss - exact) < 0.02 * exact
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(found))
    flat, wanted = (jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (found, expected))
    assert jnp.linalg.norm(flat - wanted) < 0.05 * jnp.linalg.norm(wanted)


def test_in_16_bit_the_gradient_of_a_position_is_summed_over_rows_in_float32() -> None:
    one, whole = tokens(1, 5), model("bart")
    weights = jax.random.normal(jax.random.key(1), (LENGTH, 16))

    def gradient(rows: int) -> jax.Array:
        same = jnp.tile(one, (rows, 1))

        def loss(masters: EncoderDecoderModel) -> jax.Array:
            hidden = in_compute_dtype(masters, jnp.dtype("bfloat16")).encode(same, jnp.ones_like(same))
            return (hidden.astype(jnp.float32) * weights).sum()

        found: jax.Array = eqx.filter_jit(eqx.filter_grad(loss))(whole).encoder.position_embedding
        return found

    expected = 3 * gradient(1)
    assert jnp.linalg.norm(gradient(3) - expected) < 2e-4 * jnp.linalg.norm(expected)


def test_flash_attention_keeps_no_probabilities_of_the_decoder_to_itself_alone() -> None:
    spec = SPECS["bart"]
    kept, flash = (spec.activation_floats_per_token(sequence_length=64, remat="none", flash=on) for on in (False, True))
    # in three blocks of the decoder; half of all positions are those of targets
    assert kept - flash == 3 * spec.heads * 64 // 2
