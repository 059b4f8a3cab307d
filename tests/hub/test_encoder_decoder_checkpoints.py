"""Checkpoints of encoder-decoders as their makers published them: with copies of the embedding, without the bias of the
logits, without a prefix."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_hub_families import rewritten, said, same

from trainkit import models
from trainkit.errors import TrainkitError
from trainkit.hub import source
from trainkit.hub.load import load_params, read_spec
from trainkit.hub.safetensors import FILE
from trainkit.hub.save import save
from trainkit.recipe.families.bart import Bart
from trainkit.recipe.families.bert import Bert
from trainkit.recipe.families.t5 import T5

VOCAB = 31
_SIZES: dict[str, Any] = {"vocab_size": VOCAB, "layers": 1, "decoder_layers": 2, "hidden": 8, "heads": 2}
SPECS: dict[str, Any] = {
    "t5": T5(**_SIZES, intermediate=12, head_width=3, decoder_start=0, pad_token_id=0),
    "t5-gated": T5(**_SIZES, intermediate=12, head_width=3, gated=True, tied=False, decoder_start=0, pad_token_id=0),
    "bart": Bart(**_SIZES, intermediate=12, context_length=16, decoder_start=2, pad_token_id=1),
}
BERT = Bert(vocab_size=VOCAB, layers=1, hidden=8, heads=2, intermediate=12, context_length=16)
BIASES = {"bart": "final_logits_bias", "bert": "cls.predictions.bias"}


def saved(directory: Path, spec: Any, dtype: str = "float32") -> Any:
    chance = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: _build(spec, key), jax.random.key(0))
    made = jax.tree.map(lambda leaf: jnp.asarray(chance.normal(0.2, 0.3, leaf.shape), dtype), shapes)
    directory.mkdir(exist_ok=True)
    save(directory, made, spec, dtype=dtype, sequence_length=16)
    return made


def _build(spec: Any, key: jax.Array, *, vocab: int = VOCAB) -> Any:
    return models.build(spec, vocab_size=vocab, sequence_length=16, implementation="xla", key=key)


def read(directory: Path, dtype: str = "float32") -> Any:
    shapes = jax.eval_shape(lambda key: _build(read_spec(directory), key), jax.random.key(0))
    return load_params(directory, shapes, dtype=jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_out_and_in_again_is_the_identity_bit_for_bit(tmp_path: Path, name: str, dtype: str) -> None:
    made = saved(tmp_path / "one", SPECS[name], dtype)
    assert read_spec(tmp_path / "one") == SPECS[name]
    found = read(tmp_path / "one", dtype)
    same(found, made)
    (tmp_path / "two").mkdir()
    save(tmp_path / "two", found, read_spec(tmp_path / "one"), dtype=dtype, sequence_length=16)
    for file in ("config.json", FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_copies_of_the_embedding_are_passed_over(tmp_path: Path) -> None:
    for name, prefix in (("t5", ""), ("bart", "model.")):
        made = saved(tmp_path / name, SPECS[name])
        embedding = np.asarray(made.token_embedding)
        copies = {f"{prefix}{side}.embed_tokens.weight": embedding for side in ("encoder", "decoder")}
        rewritten(tmp_path / name, lambda tensors, more=copies: tensors | more)
        same(read(tmp_path / name), made)


def test_a_bart_without_head_has_no_prefix_and_no_bias_of_the_logits_which_is_then_zero(tmp_path: Path) -> None:
    made = saved(tmp_path, SPECS["bart"])

    def bare(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        del tensors["final_logits_bias"]
        return {name.removeprefix("model."): array for name, array in tensors.items()}

    rewritten(tmp_path, bare)
    said(tmp_path, architectures=["BartModel"])
    found = read(tmp_path)
    assert not np.asarray(found.output_bias).any()
    same(found, eqx.tree_at(lambda model: model.output_bias, made, found.output_bias))


@pytest.mark.parametrize("spec", [SPECS["bart"], BERT], ids=lambda spec: spec.type)
def test_a_bias_of_the_logits_is_resized_with_the_embedding(
    tmp_path: Path, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PIECE", 4 * 10)  # the new entries lie in several pieces
    made = saved(tmp_path, spec)
    for rows in (VOCAB + 40, VOCAB - 3):
        shapes = jax.eval_shape(partial(_build, spec, vocab=rows), jax.random.key(0))
        with pytest.raises(TrainkitError, match="resize_vocabulary = true"):
            load_params(tmp_path, shapes)
        found = load_params(tmp_path, shapes, resize=True)
        for leaf in ("token_embedding", "output_bias"):
            before, after = (np.asarray(getattr(model, leaf)) for model in (made, found))
            if leaf == "output_bias":
                before, after = before.T, after.T
            kept = min(rows, VOCAB)
            np.testing.assert_array_equal(after[:kept], before[:kept])
            np.testing.assert_allclose(after[kept:], np.broadcast_to(before.mean(0), after[kept:].shape), rtol=1e-5)
    rewritten(tmp_path, lambda tensors: tensors | {BIASES[spec.type]: np.float32(1).reshape(())})
    with pytest.raises(TrainkitError, match="of another shape"):
        load_params(tmp_path, shapes, resize=True)


def test_newer_configs_say_by_the_scale_alone_that_the_output_is_not_the_embedding(tmp_path: Path) -> None:
    made = saved(tmp_path, SPECS["t5-gated"])
    said(tmp_path, tie_word_embeddings=True, scale_decoder_outputs=False)
    assert read_spec(tmp_path) == SPECS["t5-gated"]
    same(read(tmp_path), made)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("t5", {"feed_forward_proj": "gated-silu"}),
        ("t5", {"is_gated_act": True}),
        ("bart", {"normalize_before": True}),
        ("bart", {"decoder_ffn_dim": 13}),
        ("bart", {"num_hidden_layers": 5}),
        ("bart", {"tie_word_embeddings": False}),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(tmp_path: Path, name: str, keys: dict[str, Any]) -> None:
    saved(tmp_path, SPECS[name])
    said(tmp_path, **keys)
    with pytest.raises(TrainkitError, match=next(iter(keys))):
        read_spec(tmp_path)
