"""Reward models: the loss of trl, and how parts of a batch add up."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import ENCODERS, FIXED
from paired_rows import halves, mean_and_gradient, padded, sums
from parity import GRADIENT, _as_tensors, _read
from reference import Reference
from test_preference_losses import LENGTH, pairs

from trainkit.recipe.sections.preference_tasks import Reward
from trainkit.tasks import build
from trainkit.tasks.statistics import values_of

#: Of the largest number there.
EXACT = 1e-5
CONFIGS = {"bert": ENCODERS["bert"], "llama": FIXED["llama"].config | {"pad_token_id": 0}}


def batch_of(made: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The pairs as a batch, whose padding is 0."""
    there = np.arange(LENGTH + 1) < made["filled"][..., None]
    tokens = np.where(there, made["tokens"], 0).astype(np.uint16)
    return {"tokens": jnp.asarray(tokens), "filled": jnp.asarray(made["filled"].astype(np.int32))}


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_gradient_and_metrics_are_those_of_trl(name: str, reference: Reference, tmp_path: Path) -> None:
    if not reference.has("trl"):
        pytest.skip("no trl to compare with: the Python of the reference has torch, but .ci/run has not installed trl")
    made, task = pairs(count=5), build(Reward(type="reward", centring=0.2))
    margins = [0.5, 0.0, 2.0, 0.1, 0.7] if name == "llama" else []
    asked = {"tokens": made["tokens"].tolist(), "filled": made["filled"].tolist(), "margins": margins, "centring": 0.2}
    expected = reference.reward(tmp_path, CONFIGS[name], seed=3, **asked)
    model, batch = _read(tmp_path), batch_of(made)
    batch |= {"labels": jnp.asarray(margins)} if margins else {}

    value, metrics, gradients = mean_and_gradient(task, model, batch)
    assert abs(value - expected["loss"]) <= EXACT * expected["loss"]
    measured = values_of(metrics)
    for side, scores in zip(("chosen", "rejected"), expected["scores"].T, strict=True):
        np.testing.assert_allclose(measured[f"{side}_score"], scores.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(measured["accuracy"], expected["accuracy"])
    np.testing.assert_allclose(measured["margin"], expected["margin"], rtol=1e-4, atol=1e-6)
    ours = _as_tensors(tmp_path, model, gradients)
    theirs = {name: expected[name] for name in ours}
    largest = max(np.abs(numbers).max() for numbers in theirs.values())
    assert largest > 0 and all(name.startswith(GRADIENT) for name in theirs)
    assert all(np.abs(ours[name] - theirs[name]).max() <= EXACT * largest for name in theirs)


class FirstToken(eqx.Module):
    """A model whose score of a text is a number of its first token."""

    table: jax.Array

    def hidden_and_penalty(self, tokens, *, segments_BT):
        return self.table[tokens], jnp.float32(0)

    def scores(self, hidden, segments):
        return hidden[:, 0, None]


def test_parts_of_a_batch_rows_of_padding_and_eight_devices_add_up_to_the_whole() -> None:
    task, batch = build(Reward(type="reward", centring=0.1)), batch_of(pairs(count=6))
    batch["labels"] = jnp.linspace(0, 1, 6)
    model = FirstToken(jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.float32))

    whole, rows = sums(task, model, batch), padded(batch)
    rows["labels"] = rows["labels"].at[6:].set(jnp.nan)
    parts = (sums(task, model, half) for half in halves(batch))
    for other in (sums(task, model, rows, devices=8), jax.tree.map(lambda *each: sum(each), *parts)):
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6), whole, other)
    assert whole[0].weight == 6
