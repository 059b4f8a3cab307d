"""Encoders of drawn configurations, and masked language modelling with them, compute what transformers computes, in
float32: logits, loss and gradients, with padding at either end and several texts in one. What is exported is the same.

`test_parity_fixtures.py` compares one of each family with what was kept, and needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fixed_configs import ENCODERS
from hypothesis import strategies as st
from parity import ASKED_OF_ENCODERS, _read, drawn, exported_again, far_of, ours_of
from reference import Reference

from trainkit import models
from trainkit.hub import safetensors
from trainkit.hub.load import read_spec
from trainkit.hub.save import save
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.deberta_v3 import FAMILY, Deberta
from trainkit.recipe.families.encoder import TextEncoder
from trainkit.recipe.families.model import TOKENS, Head
from trainkit.recipe.families.modernbert import ModernBert

LENGTH = 20


def _sizes(draw: st.DrawFn, model_type: str, *, even: bool = False) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    return {
        "model_type": model_type,
        "vocab_size": draw(st.sampled_from([41, 97])),
        "hidden_size": heads * draw(st.sampled_from([4, 8] if even else [3, 8])),
        "num_hidden_layers": draw(st.integers(1, 3)) + even,
        "num_attention_heads": heads,
        "intermediate_size": draw(st.sampled_from([20, 40])),
        "max_position_embeddings": draw(st.sampled_from([LENGTH, 64])),
    }


@st.composite
def bert(draw: st.DrawFn) -> dict[str, Any]:
    more = {"type_vocab_size": draw(st.integers(1, 3)), "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5]))}
    return _sizes(draw, "bert") | more


@st.composite
def roberta(draw: st.DrawFn) -> dict[str, Any]:
    config, padding = _sizes(draw, "roberta"), draw(st.sampled_from([0, 1, 2]))
    rows = config["max_position_embeddings"] + padding + 1
    types = draw(st.integers(1, 2))
    return config | {"max_position_embeddings": rows, "pad_token_id": padding, "type_vocab_size": types}


@st.composite
def distilbert(draw: st.DrawFn) -> dict[str, Any]:
    sizes = _sizes(draw, "distilbert")
    theirs = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    theirs |= {"intermediate_size": "hidden_dim"}
    return {theirs.get(key, key): value for key, value in sizes.items()}


@st.composite
def deberta(draw: st.DrawFn) -> dict[str, Any]:
    furthest = draw(st.sampled_from([-1, 12, 40]))
    return _sizes(draw, "deberta-v2") | {
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": draw(st.sampled_from([4, 8, 16])),
        "max_relative_positions": furthest,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": draw(st.permutations(["p2c", "c2p"])),
        "position_biased_input": False,
    }


@st.composite
def modernbert(draw: st.DrawFn) -> dict[str, Any]:
    return _sizes(draw, "modernbert", even=True) | {
        "local_attention": draw(st.sampled_from([2, 7, 16])),
        "global_attn_every_n_layers": draw(st.integers(1, 4)),
        "global_rope_theta": draw(st.sampled_from([160_000.0, 500.0])),
        "local_rope_theta": draw(st.sampled_from([10_000.0, 100.0])),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-3])),
        "pad_token_id": 0,
    }


@pytest.mark.parametrize("strategy", [bert, roberta, distilbert, deberta, modernbert], ids=lambda drawn: drawn.__name__)
def test_drawn_encoders_compute_what_the_reference_does(strategy: Any, reference: Reference, tmp_path: Path) -> None:
    config, seed = drawn(strategy(), st.integers(0, 1000))
    expected = reference.make_encoder(tmp_path, config, seed=seed, size=(3, LENGTH), **ASKED_OF_ENCODERS)
    assert not far_of(ours_of(tmp_path, expected, ASKED_OF_ENCODERS), expected), config
    assert reference.reads_as(exported_again(tmp_path), tmp_path)


def test_the_head_of_published_deberta_predicts_what_it_does_in_the_reference(
    reference: Reference, tmp_path: Path
) -> None:
    config = ENCODERS["deberta-v3"] | {"legacy": False}
    expected = reference.make_encoder(tmp_path, config, seed=1, size=(3, LENGTH), **ASKED_OF_ENCODERS)
    theirs = safetensors.open_directory(tmp_path)
    assert "lm_predictions.lm_head.dense.weight" in theirs
    for other, ours in FAMILY.aliases.items():
        expected = {name.replace(other, ours): numbers for name, numbers in expected.items()}
    assert not far_of(ours_of(tmp_path, expected, ASKED_OF_ENCODERS), expected)
    (out := tmp_path / "out").mkdir()
    save(out, _read(tmp_path), read_spec(tmp_path), dtype="float32", sequence_length=64)
    written = safetensors.open_directory(out)
    for name in ("dense.weight", "LayerNorm.bias"):
        head = theirs.view(f"lm_predictions.lm_head.{name}")
        assert np.array_equal(written.view(f"cls.predictions.transform.{name}"), head)
    assert np.array_equal(written.view("cls.predictions.bias"), theirs.view("lm_predictions.lm_head.bias"))


@pytest.mark.parametrize(
    "head", [TOKENS, Head("sequence", 3), Head("token", 3), Head("span", 2)], ids=lambda head: head.kind
)
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
