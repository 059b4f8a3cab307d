"""Every family computes what transformers once computed and `scripts/parity_fixtures.py` has kept: without torch."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixed_configs import ENCODER_DECODERS, ENCODERS, FIXED
from parity import GRADIENT, NEAR, Found, differences, exported_again, ours_of
from parity_rule import along, tokens, weight
from places import FIXTURES

from trainkit.hub import safetensors
from trainkit.hub.config import family_of
from trainkit.hub.safetensors import TensorEntry
from trainkit.recipe.families import families

KEPT = FIXTURES / "parity"
NAMES = sorted(file.stem for file in KEPT.glob("*.json"))


def said(name: str) -> dict[str, Any]:
    return json.loads((KEPT / f"{name}.json").read_text())


def kept(name: str) -> Found:
    with np.load(KEPT / f"{name}.npz") as arrays:
        return dict(arrays)


def checkpoint(directory: Path, name: str, **otherwise: Any) -> Path:
    """The checkpoint that the reference had, in two shards; its config with some keys otherwise."""
    fixture = said(name)
    entries = [
        TensorEntry(tensor, tuple(shape), np.dtype(np.float32), partial(weight, fixture["seed"], tensor, shape))
        for tensor, shape in fixture["tensors"].items()
    ]
    safetensors.write(directory, entries, shard_bytes=sum(entry.nbytes for entry in entries) * 2 // 3)
    (directory / "config.json").write_text(json.dumps(fixture["config"] | otherwise))
    return directory


def far(directory: Path, name: str) -> dict[str, float]:
    """What of the checkpoint is not as the reference had it, and by how much."""
    fixture, expected = said(name), kept(name)
    found = ours_of(directory, expected, fixture["asked"])
    apart = differences(found, {key: numbers for key, numbers in expected.items() if key in found})
    sums = np.array([along(fixture["seed"], name, found[GRADIENT + name]) for name in fixture["tensors"]])
    assert {key for key in found if key.startswith(GRADIENT)} == {GRADIENT + name for name in fixture["tensors"]}
    largest = expected["gradients"][:, 0].max()
    apart |= dict(zip(fixture["tensors"], np.abs(sums - expected["gradients"]).max(1) / largest, strict=True))
    if "greedy" in found:
        apart["greedy"] = float((found["greedy"] != expected["greedy"]).sum())
    return {key: much for key, much in apart.items() if not much < NEAR}


def test_there_is_one_of_every_family() -> None:
    assert sorted([*FIXED, *ENCODERS, *ENCODER_DECODERS]) == NAMES
    found = {family_of(said(name)["config"], where=name).type for name in NAMES}
    assert found == {family.type for family in families()}


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_reference_did(name: str, tmp_path: Path) -> None:
    fixture, expected = said(name), kept(name)
    given = "sources" if "sources" in expected else "tokens"
    real = expected.get("mask", np.ones_like(expected[given])) > 0
    made = tokens(fixture["seed"], (1 + (given == "sources"), *real.shape), fixture["config"]["vocab_size"])[0]
    assert (made == expected[given])[real].all(), "numpy gives other random numbers than when these were made"
    assert not far(checkpoint(tmp_path, name), name)


@pytest.mark.parametrize("name", [*ENCODERS, *ENCODER_DECODERS])
def test_a_model_with_an_encoder_is_written_as_it_was_read_bit_for_bit(name: str, tmp_path: Path) -> None:
    exported_again(checkpoint(tmp_path, name))


def test_a_model_that_is_a_little_otherwise_is_noticed(tmp_path: Path) -> None:
    differs = far(checkpoint(tmp_path, "mistral", sliding_window=6), "mistral")
    assert {"logits", "late_logits", "left_padded_logits", "loss", "model.embed_tokens.weight"} <= set(differs)
