"""Encoder-decoders of drawn configurations compute what transformers computes, in float32: logits, loss and gradients,
with sources padded at either end and targets padded at the end. What is exported is the same.

`test_parity_fixtures.py` compares some with what was kept, and needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixed_configs import ENCODER_DECODERS
from hypothesis import strategies as st
from parity import ASKED_OF_ENCODERS, drawn, exported_again, far_of, ours_of
from reference import Reference

from trainkit.models.dropout import Dropout


def compare(reference: Reference, directory: Path, config: dict[str, Any], seed: int, *, thinned: bool = False) -> None:
    asked = {"seed": seed, "size": (3, 24), "thinned": thinned, **ASKED_OF_ENCODERS}
    expected = reference.make_encoder_decoder(directory, config, **asked)
    assert not far_of(ours_of(directory, expected, ASKED_OF_ENCODERS), expected)
    assert thinned or reference.reads_as(exported_again(directory), directory)


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


@pytest.mark.parametrize("strategy", [t5, bart])
def test_drawn_ones_compute_what_the_reference_does(strategy: Any, reference: Reference, tmp_path: Path) -> None:
    config, seed = drawn(strategy(), st.integers(0, 1000))
    compare(reference, tmp_path, config, seed)


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
