"""Every schedule is that of its reference: transformers' and torch's, after a warm-up that begins one step earlier."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from reference import Reference

from trainkit.errors import TrainkitError
from trainkit.recipe import Recipe
from trainkit.recipe.sections.schedule import Cosine, LinearDecay, Wsd
from trainkit.recipe.sections.schedule_shapes import (
    Chain,
    ChainPart,
    Exponential,
    ExponentialRise,
    InverseSqrt,
    OneCycle,
    PiecewiseLinear,
    Polynomial,
    Power,
)
from trainkit.recipe.sections.schedule_spec import NEVER, Schedule, ScheduleSpec
from trainkit.recipe.spec import type_of
from trainkit.recipe.union import members_of

Recipe.model_rebuild()
STEPS, WARMUP = 100, 20
LENGTHS = {"num_warmup_steps": WARMUP, "num_training_steps": STEPS}
#: A schedule, its name in transformers or torch with its options, and the first step at which both are compared.
REFERENCES: dict[str, tuple[ScheduleSpec, str, dict[str, Any], int]] = {
    "linear": (LinearDecay(type="linear", warmup=WARMUP, min_ratio=0.0), "linear", LENGTHS, WARMUP),
    "cosine": (Cosine(warmup=WARMUP, min_ratio=0.0), "cosine", LENGTHS, WARMUP),
    "restarts": (
        Cosine(warmup=WARMUP, min_ratio=0.0, restarts=2),
        "cosine_with_restarts",
        LENGTHS | {"scheduler_specific_kwargs": {"num_cycles": 3}},
        WARMUP,
    ),
    "polynomial": (
        Polynomial(type="polynomial", warmup=WARMUP, power=3.0, min_ratio=0.1),
        "polynomial",
        LENGTHS | {"scheduler_specific_kwargs": {"power": 3.0, "lr_end": 0.1}},
        WARMUP,
    ),
    "inverse-sqrt": (InverseSqrt(type="inverse-sqrt", warmup=WARMUP), "inverse_sqrt", LENGTHS, WARMUP),
    "exponential": (
        Exponential(type="exponential", warmup=0, min_ratio=0.98**STEPS),
        "ExponentialLR",
        {"gamma": 0.98},
        0,
    ),
    "one-cycle": (OneCycle(type="one-cycle"), "OneCycleLR", {"max_lr": 1.0, "total_steps": STEPS}, 0),
    "one-cycle-linear": (
        OneCycle(type="one-cycle", warmup=0.4, shape="linear", first_ratio=0.1, min_ratio=1e-3),
        "OneCycleLR",
        {
            "max_lr": 1.0, "total_steps": STEPS, "pct_start": 0.4, "anneal_strategy": "linear", "div_factor": 10.0,
            "final_div_factor": 100.0,
        },
        0,
    ),
}  # fmt: skip


def rates(schedule: ScheduleSpec, steps: int = STEPS) -> np.ndarray:
    return np.array([schedule.rate(step, peak=1.0, steps=steps, decay_start=NEVER, xp=np) for step in range(steps)])


@pytest.fixture(scope="module")
def references(reference: Reference) -> dict[str, list[float]]:
    wanted = {label: (kind, options) for label, (_, kind, options, _) in REFERENCES.items()}
    return reference.schedules(wanted, steps=STEPS)


@pytest.mark.parametrize("label", REFERENCES)
def test_a_schedule_is_that_of_torch_or_transformers(label: str, references: dict[str, list[float]]) -> None:
    schedule, _, options, first = REFERENCES[label]
    steps = options.get("total_steps", STEPS)
    np.testing.assert_allclose(rates(schedule, steps)[first:STEPS], references[label][first:], rtol=1e-6, atol=1e-9)


def test_power_falls_from_its_timescale_on_whatever_the_length_of_the_run() -> None:
    power = Power(type="power", warmup=0, exponent=0.5, timescale=25)
    wanted = [min(1.0, (25 / (step + 1)) ** 0.5) for step in range(STEPS)]
    np.testing.assert_allclose(rates(power), wanted)
    np.testing.assert_array_equal(rates(power), rates(power, 10 * STEPS)[:STEPS])


def test_the_rise_of_a_range_test_has_the_same_factor_in_each_step() -> None:
    rise = ExponentialRise(type="exponential-rise", first_ratio=1e-4)
    np.testing.assert_allclose(rates(rise), np.geomspace(1e-4, 1, STEPS), rtol=1e-6)


def test_lines_go_through_their_points() -> None:
    lines = PiecewiseLinear(type="piecewise-linear", points=((0, 0.2), (0.5, 1.0), (80, 0.1)))
    found = rates(lines)
    np.testing.assert_allclose(found[[0, 25, 50, 65, 80, 99]], [0.2, 0.6, 1.0, 0.55, 0.1, 0.1], rtol=1e-6)


def test_a_chain_is_its_parts_one_after_the_other() -> None:
    first, last = Cosine(warmup=5), LinearDecay(type="linear", warmup=10, min_ratio=0.0)
    chain = Chain(
        type="chain", parts=(ChainPart(length=0.3, schedule=first), ChainPart(length=1, ratio=0.5, schedule=last))
    )
    np.testing.assert_allclose(rates(chain), [*rates(first, 30), *(0.5 * rates(last, 70))])


def test_a_cool_down_ends_any_schedule_in_a_straight_line() -> None:
    for kind in (InverseSqrt, OneCycle):
        plain, cooled = (kind(type=type_of(kind), cooldown=span) for span in (0, 0.2))
        wanted = rates(plain) * np.minimum(1, (STEPS - np.arange(STEPS)) / 20)
        np.testing.assert_allclose(rates(cooled), wanted)


def chain(*parts: ChainPart) -> Chain:
    return Chain(type="chain", parts=parts)


def example(kind: type[ScheduleSpec]) -> ScheduleSpec:
    values = {
        "piecewise-linear": {"points": ((0, 0.2), (1.0, 0.1))},
        "chain": {
            "parts": (ChainPart(length=0.3, schedule=Cosine()), ChainPart(length=1, schedule=Cosine(restarts=1)))
        },
    }
    return kind(type=type_of(kind), **values.get(type_of(kind), {}))


@pytest.mark.parametrize("kind", members_of(Schedule))
def test_a_schedule_on_the_device_is_that_on_the_host_and_finite_at_all_steps(kind: type[ScheduleSpec]) -> None:
    schedule, steps = example(kind), np.arange(50)
    on_device = jax.jit(lambda step: schedule.rate(step, peak=3.0, steps=50, decay_start=NEVER, xp=jnp))(steps)
    on_host = [schedule.rate(int(step), peak=3.0, steps=50, decay_start=NEVER, xp=np) for step in steps]
    np.testing.assert_allclose(np.broadcast_to(on_device, 50), on_host, rtol=2e-5, atol=1e-6)
    assert np.isfinite(on_host).all() and max(on_host) <= 3.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (Cosine, {"warmup": 0.6, "cooldown": 0.5}, "warmup = 0.6 and cooldown = 0.5 together are more"),
        (PiecewiseLinear, {"points": ((0.5, 1.0), (0.2, 0.5))}, "increasing order"),
        (Chain, {"warmup": 3, "parts": (ChainPart(length=1, schedule=Cosine()),)}, "a chain has none"),
        (Chain, {"parts": (ChainPart(length=0.7, schedule=Cosine()),) * 2}, "1.4 of the run"),
        (Wsd, {"cooldown": 5}, "has its decay in its place"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(kind: type[ScheduleSpec], values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        kind(type=type_of(kind), **values)
    with pytest.raises(ValidationError, match="cannot be a chain"):
        ChainPart(length=1, schedule=example(Chain))


@pytest.mark.parametrize(
    ("schedule", "where", "said", "fix"),
    [
        (Cosine(warmup=101), "schedule.warmup", "schedule.warmup = 101 is more than the 100 steps", "at most 100"),
        (
            Wsd(type="wsd", warmup=60, decay=0.5),
            "schedule.warmup",
            "schedule.warmup = 60 and schedule.decay = 0.5 together are more than the 100 steps",
            "at least 120 steps",
        ),
        (Wsd(type="wsd", warmup=0.02, decay=99), "schedule.decay", "schedule.decay = 99", "at least 102 steps"),
        (InverseSqrt(type="inverse-sqrt", warmup=90, cooldown=20), "schedule.warmup", "cooldown = 20", "110 steps"),
        (
            PiecewiseLinear(type="piecewise-linear", points=((0.9, 1.0), (80, 0.5))),
            "schedule.points",
            "at the steps 90, 80 of 100",
            "fractions",
        ),
        (
            chain(ChainPart(length=90, schedule=Cosine()), ChainPart(length=20, schedule=Cosine())),
            "schedule.parts.0.length",
            "schedule.parts.0.length = 90 and schedule.parts.1.length = 20",
            "110 steps",
        ),
        (
            chain(ChainPart(length=9, schedule=Cosine(warmup=10)), ChainPart(length=1, schedule=Cosine())),
            "schedule.parts.0.schedule.warmup",
            "parts.0.schedule.warmup = 10 is more than the 9 steps",
            "at most 9",
        ),
    ],
)  # fmt: skip
def test_phases_longer_than_the_run_are_refused_with_what_would_fit(
    schedule: ScheduleSpec, where: str, said: str, fix: str
) -> None:
    with pytest.raises(TrainkitError) as refused:
        schedule.check_lengths(STEPS)
    assert refused.value.where == where
    assert said in refused.value.problem and fix in refused.value.hint
    if not isinstance(schedule, Chain | PiecewiseLinear):
        schedule.check_lengths(10 * STEPS)


@pytest.mark.parametrize("kind", members_of(Schedule))
def test_the_defaults_of_every_schedule_fit_into_any_run(kind: type[ScheduleSpec]) -> None:
    for steps in (2, 3, 7, 50):
        if type_of(kind) != "chain":  # a part may have no room for a warm-up of its own
            example(kind).check_lengths(steps)
    Wsd(type="wsd", warmup=0.3, decay=0.7).check_lengths(5)


def test_a_cosine_has_a_step_for_each_of_its_parts() -> None:
    Cosine(restarts=STEPS - 1).check_lengths(STEPS)
    with pytest.raises(TrainkitError, match=f"{STEPS + 1:,} parts of the {STEPS:,} steps"):
        Cosine(restarts=STEPS).check_lengths(STEPS)
