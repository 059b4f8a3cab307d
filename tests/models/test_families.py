"""The rotary decoders: what holds of every family, whatever it has of its own; and the size of those that are made as
GPT-2 is. See also test_parity.py."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small_decoders import LENGTH, SPECS, VOCAB, model, tokens

from trainkit import models
from trainkit.recipe.families import decoder as spec
from trainkit.recipe.families import families
from trainkit.recipe.families.gpt2 import Gpt2
from trainkit.recipe.families.moe import Sparse
from trainkit.recipe.families.mpt import Mpt
from trainkit.recipe.families.transformer import GptDecoder, Transformer
from trainkit.recipe.sections.model import Model
from trainkit.tasks.causal_lm import CausalLMTask

every_family = pytest.mark.parametrize("family", SPECS)


def test_every_rotary_family_of_a_recipe_is_tested_here() -> None:
    known = {tag["const"] for tag in _types(TypeAdapter(Model).json_schema())}
    assert known == {family.type for family in families()}
    assert {family.type for family in families() if issubclass(family.spec, spec.Decoder)} == set(SPECS)


def _types(schema: dict[str, Any]) -> list[dict[str, Any]]:
    members = {each["$ref"].rsplit("/", 1)[1] for each in schema["oneOf"]}
    return [schema["$defs"][name]["properties"]["type"] for name in members]


@st.composite
def any_rotary(draw: st.DrawFn) -> spec.Decoder:
    """Of any rotary family, with any of its options."""
    given = draw(st.sampled_from(list(SPECS.values())))
    groups, shared = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    widths = {
        "layers": draw(st.integers(1, 3)),
        "heads": groups * shared,
        "kv_heads": draw(st.just(groups) if shared > 1 else st.sampled_from([None, groups])),
        "hidden": groups * shared * 2 * draw(st.integers(1, 6)),
        "head_width": draw(st.sampled_from([None, 4])),
        "tied": draw(st.booleans()),
    }
    options = {name: draw(st.booleans()) for name in ("attention_bias", "mlp_bias") if hasattr(given, name)}
    if getattr(given, "layers_without_window", 0):
        widths["layers_without_window"] = draw(st.integers(0, widths["layers"] - 1))
    return type(given).model_validate(given.model_dump() | widths | options)


@st.composite
def any_gpt(draw: st.DrawFn) -> GptDecoder:
    """GPT-2 or MPT, with any of their options."""
    heads = draw(st.integers(1, 5))
    values = {
        "layers": draw(st.integers(1, 4)),
        "heads": heads,
        "hidden": heads * draw(st.integers(1, 16)),
        "context_length": draw(st.none() | st.integers(1, 64)),
        "tied": draw(st.booleans()),
    }
    if draw(st.booleans()):
        return Mpt(**values, expansion_ratio=draw(st.integers(1, 5)))
    return Gpt2(**values, intermediate=draw(st.none() | st.integers(1, 100)))


@settings(max_examples=40, deadline=None)
@given(any_rotary() | any_gpt(), st.integers(2, 300), st.integers(1, 64))
def test_the_closed_form_parameter_count_is_that_of_the_real_pytree(of: Transformer, vocab: int, length: int) -> None:
    real = jax.eval_shape(
        lambda key: models.build(of, vocab_size=vocab, sequence_length=length, implementation="blockwise", key=key),
        jax.random.key(0),
    )
    names, leaves = jax.tree.leaves(models.leaf_names(real)), jax.tree.leaves(real)
    shapes = {name: leaf.shape for name, leaf in zip(names, leaves, strict=True)}
    assert of.leaf_shapes(vocab_size=vocab, sequence_length=length) == shapes
    counted = of.parameter_count(vocab_size=vocab, sequence_length=length)
    for part, size in counted.items():
        assert sum(leaf.size for leaf in jax.tree.leaves(getattr(real, part))) == size, part
    assert sum(leaf.size for leaf in jax.tree.leaves(real)) == sum(counted.values())
    leaves = jax.tree.leaves(real.blocks)
    used = sum(leaf.size for leaf in leaves if leaf.ndim == 3)
    if isinstance(of, Sparse):
        used += sum(leaf.size for leaf in leaves if leaf.ndim == 4) // of.experts * of.experts_per_token
    assert of.matmul_parameters(vocab_size=vocab) == used + vocab * of.hidden
    assert real.context_length == (of.context_length or length)


@every_family
def test_a_text_read_into_the_cache_bit_by_bit_is_as_the_whole_text_read_at_once(family: str) -> None:
    decoder, ids = model(SPECS[family]), tokens(2)
    read = eqx.filter_jit(lambda ids, positions, cache: decoder.hidden_states(ids, positions_BT=positions, cache=cache))
    whole = decoder.logits(decoder.hidden_states(ids)[0])
    positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    # what padding leaves in the cache is overwritten before it is seen
    padded = jnp.where(positions < 9, ids, 0)
    hidden, cache = read(padded, positions, decoder.empty_cache(2, LENGTH))
    np.testing.assert_allclose(decoder.logits(hidden)[:, :9], whole[:, :9], atol=2e-4)
    for i in range(9, LENGTH):
        hidden, cache = read(ids[:, i : i + 1], positions[:, i : i + 1], cache)
        np.testing.assert_allclose(decoder.logits(hidden)[:, 0], whole[:, i], atol=2e-4)


@every_family
def test_documents_in_one_row_are_as_in_rows_of_their_own(family: str) -> None:
    decoder, ids = model(SPECS[family]), tokens(1)
    segments = jnp.array([[1] * 9 + [2] * 12 + [0] * 3])
    positions = jnp.concatenate([jnp.arange(9), jnp.arange(12), jnp.arange(3)])[None]
    together = decoder.hidden_states(ids, positions_BT=positions, segments_BT=segments)[0][0, :21]
    apart = [decoder.hidden_states(ids[:, part])[0][0] for part in (slice(0, 9), slice(9, 21))]
    np.testing.assert_allclose(together, jnp.concatenate(apart), atol=1e-4)


@every_family
def test_a_token_changes_what_its_windows_reach_and_nothing_else(family: str) -> None:
    of = SPECS[family]
    decoder, ids = model(of), tokens(1)
    other = ids.at[0, 3].set((ids[0, 3] + 1) % VOCAB)
    moved = np.abs(decoder.hidden_states(ids)[0] - decoder.hidden_states(other)[0]).max(-1)[0]
    reach = LENGTH if None in of.windows else sum(window - 1 for window in of.windows)
    assert (moved[:3] == 0).all() and (moved[3 : 4 + reach] > 1e-6).all() and (moved[4 + reach :] == 0).all()


@every_family
def test_attention_is_charged_for_the_positions_that_layers_see(family: str) -> None:
    of, seen = SPECS[family], 0
    for window in of.windows:
        distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
        seen += ((distance >= 0) & (distance < (window or LENGTH))).sum()
    assert of.attention_flops_per_token(sequence_length=LENGTH) == 4 * of.query_width * seen // LENGTH


def test_in_gemma_each_last_layer_of_a_pattern_is_global_and_turns_otherwise() -> None:
    gemma = SPECS["gemma3"].model_copy(update={"layers": 5})
    assert gemma.windows == (5, None, 5, None, 5)
    assert [rope.theta for rope in gemma.ropes] == [1e4, 1e6, 1e4, 1e6, 1e4]
    assert [rope.scaling is None for rope in gemma.ropes] == [True, False, True, False, True]


def test_logits_stay_below_the_softcap_and_their_loss_is_that_of_the_capped() -> None:
    gemma, ids = model(SPECS["gemma2"], scale=20.0), tokens(2)
    logits = gemma.logits(gemma.hidden_states(ids)[0])
    assert 0.9 < float(jnp.abs(logits).max()) <= 1.0
    batch = {"tokens": ids, "targets": ids, "weights": jnp.ones(ids.shape)}
    expected = -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1).sum()
    np.testing.assert_allclose(CausalLMTask().loss(gemma, batch)[0], expected, rtol=1e-5)


def test_fresh_norms_only_norm_wherever_weights_count_from() -> None:
    fresh = {
        name: models.build(
            SPECS[name], vocab_size=9, sequence_length=8, implementation="blockwise", key=jax.random.key(0)
        )
        for name in ("gemma2", "olmo2")
    }
    x = jax.random.normal(jax.random.key(1), (4, 32))
    np.testing.assert_allclose(fresh["gemma2"].final_norm(x), fresh["olmo2"].final_norm(x), rtol=1e-6)
    assert not fresh["gemma2"].final_norm.weight.any() and (fresh["olmo2"].final_norm.weight == 1).all()


@pytest.mark.parametrize(
    ("family", "wrong", "because"),
    [
        ("qwen3", {"head_width": 5}, "head_width = 5: rotary positions need an even width"),
        ("gemma2", {"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4; the nearest that do: 1, 2, 4"),
        ("mixtral", {"experts_per_token": 5}, "experts_per_token = 5 is more than experts = 4"),
        ("llama", {"window": 3}, "window"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 2, "low_frequency_factor": 4.0}}, "must be more than"),
        (
            "olmo2",
            {"rope_scaling": {"type": "yarn", "factor": 0.5, "original_context": 8}},
            "greater than or equal to 1",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(family: str, wrong: dict[str, Any], because: str) -> None:
    with pytest.raises(ValidationError, match=because):
        type(SPECS[family]).model_validate(SPECS[family].model_dump() | wrong)
