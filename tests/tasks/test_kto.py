"""KTO: the loss of trl, rows of padding and several devices, and a run beside an adapter."""

from __future__ import annotations

import json
import random
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_configs import FIXED
from parity import _as_tensors, _read
from reference import Reference
from test_preference_losses import batch_of, fresh, pairs
from trainer import WORDS, losses, trainkit

from trainkit.events.log import read
from trainkit.parallel import mesh
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

    def mean(model):
        found = task.loss(model, batch)
        return found.sum / found.weight, found.metrics

    (value, metrics), gradients = eqx.filter_jit(eqx.filter_value_and_grad(mean, has_aux=True))(model)
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

    def sums(rows, data=1):
        on = mesh.make_mesh(data=data, fsdp=1)
        with jax.set_mesh(on):
            lying = {name: jax.device_put(a[None], mesh.batch_sharding(on)) for name, a in rows.items()}

            def total(model):
                found = task.loss(model, {name: a[0] for name, a in lying.items()})
                return found.sum, found

            (_, found), slopes = eqx.filter_jit(eqx.filter_value_and_grad(total, has_aux=True))(model)
            return jax.device_get((found, slopes))

    whole = sums(batch)
    padded = {name: jnp.concatenate([a, jnp.zeros((2, *a.shape[1:]), a.dtype)]) for name, a in batch.items()}
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(sums(padded, data=8)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    assert whole[0].weight == len(LABELS)


RECIPE = """
schema = 1
[run]
name = "tiny"
[model]
type = "gpt2"
layers = 1
hidden = 32
heads = 2
[adapter]
type = "lora"
rank = 4
[tokenizer]
train = { vocab_size = 300 }
[task]
type = "kto"
beta = 0.3
[data]
sequence_length = 32
held_out = 0.15
encoding = { type = "pad" }
[[data.train]]
path = "answers.jsonl"
document = { type = "judged", answer = " {completion}" }
[train]
steps = 16
batch_size = 8
[optimizer]
learning_rate = 1e-2
[evaluate]
every = 8
[track]
aim = false
"""


def test_beside_an_adapter_a_run_begins_at_the_reference_and_learns_which_answers_are_good(tmp_path: Path) -> None:
    chance = random.Random(0)
    with (tmp_path / "answers.jsonl").open("w") as file:
        for _ in range(80):
            good = chance.random() < 0.5
            asked = " ".join(chance.choices(WORDS, k=chance.randrange(1, 6)))
            said = " ".join(["yes" if good else "no"] * chance.randrange(1, 6))
            file.write(json.dumps({"prompt": asked, "completion": said, "label": good}) + "\n")
    (tmp_path / "tiny.toml").write_text(RECIPE)
    done = trainkit(tmp_path, "run", "tiny.toml", "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "tiny"
    assert losses(run)[1] == pytest.approx(0.5, abs=1e-4), "the base without the adapter is its own reference"
    assert losses(run)[16] < 0.4
    last = {e["step"]: e["metrics"] for e in read(run) if e["type"] == "evaluated"}[16]
    assert last["validation/held-out/desirable_reward"] > last["validation/held-out/undesirable_reward"]
