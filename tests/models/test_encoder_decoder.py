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
from pydantic import ValidationError

from trainkit import models
from trainkit.hub import adapter_config, peft
from trainkit.models.adapters import adapt, adapted_layers, trainable
from trainkit.models.encoder_decoder import EncoderDecoderModel
from trainkit.recipe.families.bart import Bart
from trainkit.recipe.families.encoder_decoder import EncoderDecoder
from trainkit.recipe.families.model import Head
from trainkit.recipe.families.t5 import T5
from trainkit.recipe.sections.adapter import Lora, adapter_shapes

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
    seq, sources, targets = model(name), tokens(3, 2, length=8), tokens(3, 3)
    segments = jnp.ones(sources.shape, jnp.int32).at[0, 5:].set(0)
    memory = seq.encode(sources, segments)
    whole = seq.logits(seq.decode(targets, memory, segments))
    step = eqx.filter_jit(seq.step)
    found, cache = step(targets[:, :4], seq.start(memory, segments, LENGTH))
    np.testing.assert_allclose(found, whole[:, 3], atol=1e-4)
    for at in range(4, LENGTH):
        # rows change places, as beams do
        order = jnp.roll(jnp.arange(3), at)
        found, _ = step(targets[order, at : at + 1], cache.rows(order))
        np.testing.assert_allclose(found, whole[order, at], atol=1e-4)
        found, cache = step(targets[:, at : at + 1], cache)
    np.testing.assert_allclose(found, whole[:, -1], atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_what_is_padding_of_a_source_or_later_in_a_target_changes_nothing(name: str) -> None:
    seq, sources, targets = model(name), tokens(2, 4), tokens(2, 5)
    segments = jnp.ones(sources.shape, jnp.int32).at[:, 7:].set(0)

    @eqx.filter_jit
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
