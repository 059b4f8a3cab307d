"""Every encoder-decoder computes what transformers computes, in float32: logits, loss and gradients, with sources
padded at either end and targets padded at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from parity import GRADIENT, _as_tensors, _compiled, _read
from reference import Reference

from trainkit.hub.load import read_spec
from trainkit.hub.save import save
from trainkit.models.dropout import Dropout
from trainkit.models.loss import blocked_cross_entropy

#: Of the largest number there.
NEAR, NEAR_LOGITS = 1e-5, 1e-4
PADDED = 5


def compare(reference: Reference, directory: Path, config: dict[str, Any], seed: int, *, thinned: bool = False) -> None:
    asked = {"seed": seed, "size": (3, 24), "padded": PADDED, "thinned": thinned}
    expected = reference.make_encoder_decoder(directory, config, **asked)
    sources, segments, labels = (jnp.asarray(expected[name], jnp.int32) for name in ("sources", "mask", "labels"))
    start = config["decoder_start_token_id"]
    inputs = jnp.roll(jnp.maximum(labels, 0), 1, axis=1).at[:, 0].set(start)

    @_compiled
    @eqx.filter_value_and_grad(has_aux=True)
    def trained(model: Any) -> tuple[Any, Any]:
        hidden = model.decode(inputs, model.encode(sources, segments), segments)
        total, weight = blocked_cross_entropy(
            model.prediction_states(hidden), model.unembedding(), jnp.maximum(labels, 0), labels >= 0
        )
        return total / weight, model.logits(hidden)

    model = _read(directory)
    (loss, logits), gradients = trained(model)
    real = np.asarray(labels) >= 0
    apart = np.abs(np.asarray(logits) - expected["logits"])[real].max() / np.abs(expected["logits"]).max()
    assert apart < NEAR_LOGITS
    assert abs(loss - expected["loss"]) < NEAR * expected["loss"]
    # torch gives a buffer no gradient, and neither do we: it has saved the numbers themselves
    theirs = {
        name: array for name, array in expected.items() if name.startswith(GRADIENT) and "logits_bias" not in name
    }
    ours = _as_tensors(directory, model, gradients)
    bias = ours.pop(GRADIENT + "final_logits_bias", np.zeros(1))
    assert not bias.any() and ours.keys() == theirs.keys()
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    far = {name: np.abs(ours[name] - theirs[name]).max() / largest for name in ours}
    assert not {name: much for name, much in far.items() if not much < NEAR}
    if thinned:
        return
    out = directory / "out"
    out.mkdir()
    save(out, model, read_spec(directory), dtype="float32", sequence_length=64)
    assert read_spec(out) == read_spec(directory)
    assert all(jax.tree.map(np.array_equal, jax.tree.leaves(_read(out)), jax.tree.leaves(model)))
    assert reference.reads_as(out, directory)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_computes_what_the_reference_does(name: str, reference: Reference, tmp_path: Path) -> None:
    compare(reference, tmp_path, ENCODER_DECODERS[name], seed=3)


@st.composite
def t5(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "vocab_size": draw(st.sampled_from([41, 97])),
        "d_model": draw(st.sampled_from([16, 24])),
        "d_kv": draw(st.sampled_from([4, 8])),
        "d_ff": draw(st.sampled_from([20, 40])),
        "num_layers": draw(st.integers(1, 2)),
        "num_decoder_layers": draw(st.sampled_from([None, 1, 3])),
        "num_heads": draw(st.integers(1, 4)),
        "relative_attention_num_buckets": draw(st.sampled_from([4, 10, 32])),
        "relative_attention_max_distance": draw(st.sampled_from([17, 128])),
        "feed_forward_proj": draw(st.sampled_from(["relu", "gated-gelu"])),
        "tie_word_embeddings": draw(st.booleans()),
        "decoder_start_token_id": draw(st.sampled_from([0, 5])),
    }


@st.composite
def bart(draw: st.DrawFn) -> dict[str, Any]:
    heads, width = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([20, 40]))
    return {
        "model_type": "bart",
        "vocab_size": draw(st.sampled_from([41, 97])),
        "d_model": draw(st.sampled_from([16, 24])),
        "encoder_layers": draw(st.integers(1, 3)),
        "decoder_layers": draw(st.integers(1, 3)),
        **{f"{side}_attention_heads": heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": width for side in ("encoder", "decoder")},
        "max_position_embeddings": draw(st.sampled_from([24, 64])),
        "scale_embedding": draw(st.booleans()),
        "decoder_start_token_id": draw(st.sampled_from([0, 2])),
    }


@pytest.mark.parametrize("drawn", [t5, bart])
def test_drawn_ones_compute_what_the_reference_does(drawn: Any, reference: Reference, tmp_path: Path) -> None:
    @settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(drawn(), st.integers(0, 1000))
    def compared(config: dict[str, Any], seed: int) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            compare(reference, Path(directory), config, seed)

    compared()


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("t5", {"dropout_rate": 0.1}),
        ("bart", {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}),
    ],
)
def test_dropout_stands_where_the_reference_has_it(
    name: str, rates: dict[str, float], reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # dropout multiplies with the share that it keeps, on both sides
    monkeypatch.setattr(Dropout, "is_on", property(lambda self: self.rate > 0))
    monkeypatch.setattr(Dropout, "__call__", lambda self, x: x * (1 - self.rate))
    compare(reference, tmp_path, ENCODER_DECODERS[name] | rates, seed=4, thinned=True)
