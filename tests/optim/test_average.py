"""Averages of parameters: what they are worth, and where the step leaves them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import trajectories
from sample_recipe import changed, line_of, write

from trainkit.checkpoint.leaves import named_leaves
from trainkit.errors import TrainkitError
from trainkit.optim import average
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.parameter_free import ScheduleFree
from trainkit.recipe.optimizers.spec import Group
from trainkit.recipe.sections.average import AverageSpec, EmaAverage, MeanAverage
from trainkit.recipe.toml.load import load

STEPS = 12


def expected(spec: AverageSpec, params: list[np.ndarray]) -> np.ndarray:
    """Return the average of parameters after each step, from 0, in float64."""
    first = spec.first_step(len(params) - 1)
    chosen = [p for step, p in enumerate(params) if step >= max(first, 1) and (step - first) % spec.every == 0]
    if isinstance(spec, MeanAverage):
        return np.mean(chosen, axis=0)
    found = chosen[0]
    for p in chosen[1:]:
        found = spec.decay * found + (1 - spec.decay) * p
    return found


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "spec",
    [
        EmaAverage(decay=0.7),
        EmaAverage(decay=0.9, start=4, every=3),
        MeanAverage(type="mean"),
        MeanAverage(type="mean", start=0.5, every=2),
    ],
)
def test_an_average_equals_its_formula_in_float64_without_the_bias_of_a_start(spec: AverageSpec, dtype: type) -> None:
    values = np.random.default_rng(0).normal(size=(STEPS + 1, 5, 3))
    params = [{"a": jnp.asarray(value, dtype)} for value in values]
    update = average.build(spec, AdamW(learning_rate=1e-2), {}, {}, steps=STEPS)
    averages, count = average.first_averages(params[0]), jnp.int32(0)
    for step in range(1, STEPS + 1):
        averages, count = update(averages, count, params=params[step], moments=(), step=jnp.int32(step))
        if step <= max(spec.first_step(STEPS), 1):
            np.testing.assert_array_equal(averages["a"], params[step]["a"].astype(jnp.float32))
    assert averages["a"].dtype == jnp.float32 and count.dtype == jnp.int32
    wanted = expected(spec, [np.asarray(p["a"], np.float64) for p in params])
    np.testing.assert_allclose(averages["a"], wanted, atol=1e-6 * np.abs(wanted).max(), rtol=0)


def test_a_step_averages_the_parameters_that_it_leaves_and_a_skipped_one_averages_nothing() -> None:
    spec = EmaAverage(decay=0.8)
    step = jax.jit(small.step(averaging=average.build(spec, AdamW(learning_rate=1e-2), {}, {}, steps=4)))
    before = small.state()
    assert not any(name.startswith("average") for name in named_leaves(before))
    state = replace(before, averages=average.first_averages(before.params), average_count=jnp.int32(0))
    seen = [named_leaves(state.params)]
    for number in range(3):
        state, _ = step(state, small.batch(number))
        seen.append(named_leaves(state.params))
    found = named_leaves(state.averages)
    for name, value in found.items():
        wanted = expected(spec, [np.asarray(params[name], np.float64) for params in seen])
        np.testing.assert_allclose(value, wanted, atol=1e-6 * np.abs(wanted).max(), rtol=0)
    names = {name for name in named_leaves(state) if name.startswith("averages.")}
    assert names == {f"averages.{name}" for name in found} and found.keys() == seen[0].keys()

    empty = small.batch(3)
    skipped, _ = step(state, dict(empty, weights=np.zeros_like(empty["weights"])))
    assert skipped.step == 4 and skipped.average_count == state.average_count == 3
    for a, b in zip(jax.tree.leaves(skipped.averages), jax.tree.leaves(state.averages), strict=True):
        np.testing.assert_array_equal(a, b)


def test_where_schedule_free_has_some_parameters_they_alone_are_averaged() -> None:
    rule = ScheduleFree(type="schedule-free", learning_rate=0.05, betas=(0.8, 0.9))
    group = Group(match="output", optimizer=rule)
    mixed = AdamW(learning_rate=0.05, groups=(group,))
    names, params = trajectories.NAMES, trajectories.start()
    found = {}
    for label, spec in (("alone", rule), ("mixed", mixed)):
        params, state = trajectories.trajectory(spec, steps=20)
        update = average.build(None, spec, names, params, steps=20)
        leaves = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
        found[label], count = update(None, jnp.int32(19), params=leaves, moments=state, step=jnp.int32(20))
        assert count == 20
    np.testing.assert_allclose(found["mixed"]["output"], found["alone"]["output"], atol=1e-6)
    assert not np.array_equal(found["mixed"]["output"], params["output"])
    for name in params.keys() - {"output"}:
        np.testing.assert_array_equal(found["mixed"][name], params[name])


def test_the_average_of_frozen_parameters_is_these_although_their_iterates_move() -> None:
    group = Group(match="output", learning_rate_factor=0.0)
    rule = ScheduleFree(type="schedule-free", learning_rate=0.05, groups=(group,))
    params, state = trajectories.trajectory(rule, steps=3)
    leaves = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    update = average.build(None, rule, trajectories.NAMES, params, steps=3)
    found, _ = update(None, jnp.int32(2), params=leaves, moments=state, step=jnp.int32(3))
    np.testing.assert_array_equal(found["output"], np.float32(trajectories.start()["output"]))
    assert not np.array_equal(found["token_embedding"], leaves["token_embedding"])


def test_an_average_beside_one_that_the_optimizer_computes_is_refused_at_its_section(tmp_path: Path) -> None:
    free = changed(("[optimizer]", '[optimizer]\ntype = "schedule-free"'))
    assert load(write(tmp_path, free)).recipe.evaluates_average
    with pytest.raises(TrainkitError, match=r'average.type = "mean" has no use beside optimizer.type') as found:
        load(write(tmp_path, free + '[average]\ntype = "mean"\n'))
    assert found.value.where.endswith(f":{line_of(free, 'aim = false') + 2}")


def test_a_start_that_is_a_fraction_of_a_run_of_unknown_length_is_refused(tmp_path: Path) -> None:
    wsd = ('type = "cosine"', 'type = "wsd"'), ("warmup = 0.02", "warmup = 2")
    hours = changed(("steps = 20", 'steps = 999\nduration = "1h"'), *wsd)
    load(write(tmp_path, hours + "[average]\nstart = 20\n"))
    with pytest.raises(TrainkitError, match=r"average\.start = 0\.5 is a fraction of a run whose length is a time"):
        load(write(tmp_path, hours + "[average]\nstart = 0.5\n"))


@pytest.mark.parametrize("decay", [0.0, 1.0, 1.5])
def test_a_decay_that_keeps_nothing_or_all_is_refused_at_its_line(tmp_path: Path, decay: float) -> None:
    text = changed() + f"[average]\ndecay = {decay}\n"
    with pytest.raises(TrainkitError, match=r"average\.decay") as found:
        load(write(tmp_path, text))
    assert found.value.where.endswith(f":{line_of(text, 'decay')}")
