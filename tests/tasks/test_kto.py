"""KTO: the loss of trl, rows of padding and several devices, and a run beside an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import equinox as eqx
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

from trainkit.evaluation.evaluator import Evaluator
from trainkit.events.log import EventLog
from trainkit.parallel.mesh import make_mesh
from trainkit.plan.stages import flops_per_token_of
from trainkit.recipe import Recipe
from trainkit.recipe.sections.preference_tasks import Kto
from trainkit.tasks import build
from trainkit.tasks.statistics import values_of
from trainkit.train.gradients import BatchGradient
from trainkit.train.state import State, initial_live

#: Of the largest number there.
EXACT = 1e-5
JUDGED = {"document": {"type": "judged", "answer": " {completion}"}}
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


class Judgements(NamedTuple):
    """A validation set of one batch after the other."""

    whole: dict[str, jax.Array]
    rows: int
    targets: int = 0
    bytes: int = 0

    def ready(self, seconds: float) -> bool:
        return True

    def __len__(self) -> int:
        return len(LABELS) // self.rows

    def batch(self, index: int) -> dict[str, np.ndarray]:
        part = slice(index * self.rows, (index + 1) * self.rows)
        return {name: np.asarray(array[part]) for name, array in self.whole.items()}


def state_of(model) -> State:
    params, frozen = eqx.partition(model, eqx.is_inexact_array)
    return State(params, frozen, (), jnp.int32(3), jax.random.key(0), initial_live())


def above_the_reference() -> dict[str, jax.Array]:
    """Judged answers whose baselines are above 0 and differ from answer to answer."""
    chance = np.random.default_rng(4).normal(-60, 9, (len(LABELS), 2))
    return judged(reference=chance.astype(np.float32))[1]


def test_the_baseline_is_that_of_the_whole_batch_however_it_is_accumulated() -> None:
    state, batch = state_of(fresh()), above_the_reference()
    gradient = BatchGradient(task=build(Kto(type="kto", **KEYS)), compute=jnp.dtype(jnp.float32), shardings=None)

    def sums_in(parts: int):
        split = {name: array.reshape(parts, -1, *array.shape[1:]) for name, array in batch.items()}
        return jax.device_get(jax.jit(gradient.sums)(state, state.params, split)[:2])

    full = sums_in(1)
    assert values_of(full[1].metrics)["kl"] > 1
    for one, two in zip(jax.tree.leaves(full), jax.tree.leaves(sums_in(3)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def test_an_evaluation_is_the_same_in_batches_of_any_size(tmp_path: Path) -> None:
    found = []
    for rows in (6, 2):
        log = EventLog(tmp_path, attempt=1)
        evaluate = Evaluator(
            {"one": Judgements(above_the_reference(), rows)},
            batch_size=rows,
            task=build(Kto(type="kto", **KEYS)),
            compute=np.dtype(np.float32),
            mesh=make_mesh(data=1, fsdp=1),
            log=log,
            interrupted=lambda: False,
        )
        found.append(evaluate(state_of(fresh()), 3)["one"])
        log.close()
    assert found[0] == pytest.approx(found[1], rel=1e-5) and found[0]["validation/one/kl"] > 1


def test_the_other_answer_counts_as_a_forward_pass_only() -> None:
    def flops(**changes) -> int:
        recipe = {
            "schema": 1,
            "model": {"layers": 2, "hidden": 32, "heads": 4},
            "tokenizer": {"train": {"vocab_size": 300}},
            "task": {"type": "kto"},
            "data": {"sequence_length": 64, "encoding": {"type": "pad"}, "train": ({"path": "rows.jsonl", **JUDGED},)},
            "train": {"steps": 10, "batch_size": 8},
            "optimizer": {"learning_rate": 1e-3},
        }
        return flops_per_token_of(Recipe.model_validate(recipe | changes), 300, 64)

    matrices, attention = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 300 * 32, 2 * 2 * 2 * 32 * 65 // 2
    assert flops() == (6 + 2) * matrices // 2 + (3 + 1) * attention // 2
    adapter = 2 * 4 * (32 + 32)  # of one matrix in each of two layers
    lora = {"type": "lora", "rank": 4, "targets": ("attention.output",)}
    assert flops(adapter=lora) == (4 + 2) * matrices // 2 + (6 + 2) * adapter // 2 + (3 + 1) * attention // 2


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
