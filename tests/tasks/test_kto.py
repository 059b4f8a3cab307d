"""KTO: the loss of trl, rows of padding and several devices, and a run beside an adapter."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_room import write_rows
from fixed_configs import FIXED
from paired_rows import judged_answers, mean_and_gradient, padded, recipe_text, sums
from parity import _as_tensors, _read
from reference import Reference
from test_preference_losses import batch_of, fresh, pairs
from trainer import evaluations, losses, run_of

from trainkit.recipe.sections.preference_tasks import Kto
from trainkit.tasks import build
from trainkit.tasks.statistics import values_of

#: Of the largest number there.
EXACT = 1e-5
KEYS = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7}
LABELS = [True, False, False, True, False, True]


def judged(**changes: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, jax.Array]]:
    made = pairs(seed=2, count=len(LABELS)) | changes
    return made, batch_of(made) | {"labels": jnp.asarray(LABELS, jnp.int32)}


@pytest.mark.parametrize("baseline", ["positive", "cut off at 0"])
def test_loss_gradient_and_metrics_are_those_of_trl(baseline: str, reference: Reference, tmp_path: Path) -> None:
    if not reference.has("trl"):
        pytest.skip("no trl to compare with: the Python of the reference has torch, but .ci/run has not installed trl")
    chance = np.random.default_rng(4).normal(-50 if baseline == "positive" else -5, 3, (len(LABELS), 2))
    made, batch = judged(reference=chance.astype(np.float32))
    reference.make(tmp_path, FIXED["llama"].config, seed=3, size=(2, 20), late=5, padded=3, greedy=1)
    asked = {name: array.tolist() for name, array in made.items()}
    expected = reference.kto(tmp_path, settings=KEYS, labels=LABELS, **asked)
    model, task = _read(tmp_path), build(Kto(type="kto", **KEYS))

    value, metrics, gradients = mean_and_gradient(task, model, batch)
    assert abs(value - expected["loss"]) <= EXACT * expected["loss"]
    ours, measured = _as_tensors(tmp_path, model, gradients), values_of(metrics)
    largest = max(np.abs(expected[name]).max() for name in ours)
    assert largest > 0 and all(np.abs(ours[name] - expected[name]).max() <= EXACT * largest for name in ours)
    assert (measured["kl"] > 1) == (baseline == "positive")
    for mine, theirs in (
        ("kl", "kl"),
        ("desirable_reward", "rewards/chosen"),
        ("undesirable_reward", "rewards/rejected"),
        ("desirable_log_likelihood", "logps/chosen"),
        ("undesirable_log_likelihood", "logps/rejected"),
    ):
        np.testing.assert_allclose(measured[mine], expected[theirs], rtol=1e-4, atol=1e-4)


def test_rows_of_padding_and_eight_devices_change_nothing() -> None:
    task, (_, batch), model = build(Kto(type="kto", **KEYS)), judged(), fresh()

    whole, other = sums(task, model, batch), sums(task, model, padded(batch), devices=8)
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    assert whole[0].weight == len(LABELS)


def test_beside_an_adapter_a_run_begins_at_the_reference_and_learns_which_answers_are_good(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", judged_answers(80))
    recipe = recipe_text(
        task='type = "kto"\nbeta = 0.3',
        document='type = "judged", answer = " {completion}"',
        steps=16,
        rate=1e-2,
        more='[adapter]\ntype = "lora"\nrank = 4',
    )
    (tmp_path / "tiny.toml").write_text(recipe)
    run = run_of(tmp_path)
    assert losses(run)[1] == pytest.approx(0.5, abs=1e-4), "the base without the adapter is its own reference"
    assert losses(run)[16] < 0.4
    last = evaluations(run)[16]
    assert last["validation/held-out/desirable_reward"] > last["validation/held-out/undesirable_reward"]
