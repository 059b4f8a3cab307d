"""[guard] inside the step: what does not count changes nothing, and a guard that is off is not there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from trainkit.events.alerts import LEAST_LOSS, _Window
from trainkit.events.log import EventLog
from trainkit.recipe.sections.guard import Guard
from trainkit.recipe.sections.task import CausalLM
from trainkit.tasks import build as build_task
from trainkit.train.guard import DRIFT, SCORE, SKIPPED, SKIPPED_IN_A_ROW, first_guard, judge
from trainkit.train.metrics import Broken, NotFinite
from trainkit.train.state import State
from trainkit.train.step import make_step
from trainkit.train.verdicts import Incident, MustRollBack, Verdicts

SKIP = Guard(non_finite="skip", max_skips=2)
FINE = {"train/loss": 1.0, "gradients/norm": 1.0, "parameters/norm": 1.0}


def step(guard: Guard | None) -> Any:
    return make_step(
        task=build_task(CausalLM()),
        optimizer=small.optimizer(),
        learning_rate=lambda step, start, end: jnp.float32(1e-2),
        compute=jnp.dtype(jnp.float32),
        max_grad_norm=1.0,
        guard=guard,
    )


@cache
def guarded(guard: Guard) -> Any:
    return jax.jit(step(guard))


def state(guard: Guard) -> State:
    return replace(small.state(), guard=first_guard(guard))


def kept(state: State) -> list[Any]:
    return jax.tree.leaves((state.params, state.optimizer))


def test_a_guard_that_decides_nothing_in_a_step_leaves_the_program_as_it_is() -> None:
    assert first_guard(Guard()) is None
    texts = {jax.jit(step(guard)).lower(small.state(), small.batch(0)).as_text() for guard in (None, Guard())}
    assert len(texts) == 1


def test_a_step_that_is_not_finite_changes_only_its_number_and_the_next_one_counts() -> None:
    one = guarded(SKIP)
    first, metrics = one(state(SKIP), small.batch(0))
    assert metrics[SKIPPED] == 0
    skipped, metrics = one(first, small.batch(1) | {"weights": np.full_like(small.batch(1)["weights"], np.inf)})
    assert metrics[SKIPPED] == metrics[SKIPPED_IN_A_ROW] == 1 and metrics["updates/norm"] == 0
    for a, b in zip(kept(first), kept(skipped), strict=True):
        np.testing.assert_array_equal(a, b)
    assert skipped.step == first.step + 1
    learned, metrics = one(skipped, small.batch(2))
    assert metrics[SKIPPED] == 1 and metrics[SKIPPED_IN_A_ROW] == 0 and metrics["updates/norm"] > 0
    assert np.isfinite(metrics["parameters/norm"])
    assert learned.step == 3


class Noted:
    def __init__(self, spec: Guard, log: Any) -> None:
        self.incidents: list[Incident] = []
        self.verdicts = Verdicts(spec, log=log, report=self.incidents.append)

    def actions(self) -> list[tuple[int, str]]:
        return [(incident.step, incident.action) for incident in self.incidents]


@pytest.fixture
def log(tmp_path: Any) -> Any:
    with_log = EventLog(tmp_path, attempt=1)
    yield with_log
    with_log.close()


def test_skipped_steps_in_a_row_are_one_incident_until_there_are_too_many(log: EventLog) -> None:
    noted = Noted(SKIP, log)
    broken = FINE | {"train/loss": np.nan, "gradients/norm": np.nan}
    for number, in_a_row in enumerate((0, 1, 2, 0, 1), start=1):
        noted.verdicts.check(number, (broken if in_a_row else FINE) | {SKIPPED_IN_A_ROW: in_a_row})
    assert noted.actions() == [(2, "skip"), (5, "skip")]
    noted.verdicts.check(6, broken | {SKIPPED_IN_A_ROW: 2})
    with pytest.raises(Broken, match="3 steps in a row would have to be skipped"):
        noted.verdicts.check(7, broken | {SKIPPED_IN_A_ROW: 3})
    assert noted.actions()[-1] == (7, "stop")
    assert [step for step, _ in noted.incidents[-1].recent] == [1, 2, 3, 4, 5, 6, 7]


def test_without_a_guard_the_first_step_that_is_not_finite_ends_the_run(log: EventLog) -> None:
    noted = Noted(Guard(), log)
    noted.verdicts.check(1, FINE)
    with pytest.raises(NotFinite, match="gradients/norm is inf"):
        noted.verdicts.check(2, FINE | {"gradients/norm": np.inf})
    assert noted.actions() == [(2, "stop")]


SPIKES = Guard(spike="skip", divergence="stop", window=30)


@cache
def judged(guard: Guard) -> Any:
    """Return a compiled function that judges a loss."""

    @jax.jit
    def one(before: Any, loss: Any) -> tuple[Any, Any, dict[str, Any]]:
        metrics = {"train/loss": loss, "gradients/norm": jnp.float32(1), "updates/norm": jnp.float32(1)}
        counts, after = judge(guard, before, metrics, weight=jnp.float32(1), scaled=False)
        return counts, after, metrics

    return one


def fed(guard: Guard, losses: Any) -> list[tuple[bool, float, float]]:
    """Return for each loss whether its step counts, its score and the drift."""
    state, found = first_guard(guard), []
    for loss in losses:
        counts, state, metrics = judged(guard)(state, jnp.float32(loss))
        found.append((bool(counts), float(metrics[SCORE]), float(metrics[DRIFT])))
    return found


def test_the_score_in_the_step_is_the_one_of_the_alerts_and_a_skipped_loss_enters_no_window() -> None:
    losses = np.random.default_rng(0).normal(3, 0.1, 70).astype(np.float32)
    losses[50] = 9
    window = _Window(30)
    for loss, (counts, score, _) in zip(losses.tolist(), fed(SPIKES, losses), strict=True):
        expected = window.score(loss, least=LEAST_LOSS * abs(window.median))
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert counts == (expected <= SPIKES.threshold)
        if counts:
            window.add(loss)
    assert not fed(SPIKES, losses)[50][0]


def test_a_loss_that_rises_slowly_is_no_spike_and_drifts_above_the_threshold() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 260)
    found = fed(SPIKES, 3 + noise + np.maximum(0, np.arange(260) - 100) * 0.01)
    assert all(counts for counts, _, _ in found), "no loss is far above those just before it"
    drifts = [drift for _, _, drift in found]
    assert max(drifts[:100]) < SPIKES.threshold < drifts[-1]


@pytest.mark.parametrize(("metric", "spec", "value"), [
    (SCORE, Guard(spike="stop"), 6.1), (DRIFT, Guard(divergence="stop"), 7.0),
])  # fmt: skip
def test_a_spike_or_a_divergence_ends_the_run_where_the_recipe_says_so(
    log: EventLog, metric: str, spec: Guard, value: float
) -> None:
    noted = Noted(spec, log)
    noted.verdicts.check(1, FINE | {metric: 5.9, SKIPPED_IN_A_ROW: 0})
    with pytest.raises(Broken, match=f"{value:.1f}"):
        noted.verdicts.check(2, FINE | {metric: value, SKIPPED_IN_A_ROW: 0})
    assert noted.actions() == [(2, "stop")]
    unguarded = Noted(Guard(), log)
    unguarded.verdicts.check(2, FINE | {metric: value})


def test_a_rollback_leaves_out_the_last_steps_and_comes_only_so_often(log: EventLog) -> None:
    broken = FINE | {"train/loss": np.nan}
    spec = Guard(non_finite="rollback", divergence="rollback", leave_out=3, window=40, max_rollbacks=2)
    assert spec.goes_back == 40 and Guard(spike="rollback", leave_out=3).goes_back == 3 and Guard().goes_back is None
    noted = Noted(spec, log)
    for step, metrics, first in ((9, broken, 7), (2, broken, 1), (90, FINE | {DRIFT: 9.0}, 51)):
        with pytest.raises(MustRollBack) as raised:
            noted.verdicts.check(step, metrics)
        assert raised.value.rollback.left_out == tuple(range(first, step + 1))
    often = Verdicts(spec, log=log, report=noted.incidents.append, rollbacks=2)
    with pytest.raises(Broken, match="rolled back 2 times already") as stopped:
        often.check(9, broken)
    assert not isinstance(stopped.value, MustRollBack) and noted.actions()[-1] == (9, "stop")
