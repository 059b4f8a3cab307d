"""Weight decay of every kind, wrappers and averages in few bits: each equals what its formula says."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import trajectories

from trainkit.optim.metrics import metrics
from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.first_order import Lion
from trainkit.recipe.optimizers.parameter_free import Prodigy
from trainkit.recipe.optimizers.spec import Group, OptimizerSpec
from trainkit.recipe.optimizers.wrappers import Cautious
from trainkit.recipe.sections.schedule import LinearDecay
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.recipe.spec import type_of

DECAYED = "blocks.mlp_in.weight"


def adamw(steps: int, *, decay_type: str, decay: float, peak: float, share, cautious: bool = False, scheduled=None):
    """AdamW in float64."""
    params = trajectories.start()
    m, v = ({name: np.zeros_like(p) for name, p in params.items()} for _ in range(2))
    for t in range(steps):
        grads = trajectories.gradient(params, t, steps)
        rate = peak * share(t)
        for name, p in params.items():
            weight = decay * (scheduled(t) if scheduled else 1.0) if name in (DECAYED, "output") else 0.0
            g = grads[name] + (weight * p if decay_type == "coupled" else 0)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g * g
            direction = m[name] / (1 - 0.9 ** (t + 1)) / (np.sqrt(v[name] / (1 - 0.95 ** (t + 1))) + 1e-8)
            if cautious:
                agrees = direction * g > 0
                own = tuple(range(name.startswith("blocks."), agrees.ndim))  # each layer's parameter is one of its own
                direction = direction * agrees / np.maximum(agrees.mean(own, keepdims=True), 1e-3)
            terms = {
                "coupled": 0.0,
                "decoupled": rate * weight * p,
                "independent": share(t) * weight * p,
                "cautious": rate * weight * p * (direction * p > 0),
            }
            params[name] = p - rate * direction - terms[decay_type]
    return params


def share(step):
    return 1.0 - step / 40


@pytest.mark.parametrize("decay_type", ["coupled", "decoupled", "independent", "cautious"])
def test_each_kind_of_weight_decay_is_that_of_its_formula(decay_type: str) -> None:
    peak, decay = (0.05, 0.01) if decay_type == "independent" else (0.05, 0.2)
    spec = AdamW(learning_rate=peak, weight_decay=decay, decay_type=decay_type)
    found, _ = trajectories.trajectory(spec, steps=30, rate=share)
    wanted = adamw(30, decay_type=decay_type, decay=decay, peak=peak, share=share)
    trajectories.assert_equal(found, wanted, within=2e-6)


@pytest.mark.parametrize("decay_type", ["coupled", "decoupled", "independent", "cautious"])
def test_a_scheduled_weight_decay_of_each_kind_is_that_of_its_formula(decay_type: str) -> None:
    peak, decay = (0.05, 0.01) if decay_type == "independent" else (0.05, 0.2)
    schedule = LinearDecay(type="linear", warmup=0, min_ratio=0.25)
    spec = AdamW(learning_rate=peak, weight_decay=decay, decay_type=decay_type)

    def scheduled(step, xp=np):
        return schedule.rate(step, peak=1.0, steps=30, decay_start=NEVER, xp=xp)

    found, _ = trajectories.trajectory(spec, steps=30, rate=share, shares={"weight_decay": partial(scheduled, xp=jnp)})
    wanted = adamw(30, decay_type=decay_type, decay=decay, peak=peak, share=share, scheduled=scheduled)
    trajectories.assert_equal(found, wanted, within=2e-6)


def test_a_factor_of_the_rate_leaves_independent_decay_as_it_is() -> None:
    half = (Group(match="*", learning_rate_factor=0.5),)
    spec = AdamW(learning_rate=0.1, weight_decay=0.01, decay_type="independent", groups=half)
    found, _ = trajectories.trajectory(spec, steps=30, rate=share)
    trajectories.assert_equal(
        found, adamw(30, decay_type="independent", decay=0.01, peak=0.05, share=share), within=2e-6
    )


@pytest.mark.parametrize("kind", [Prodigy, Lion])
def test_every_rule_decays_by_the_share(kind: type[OptimizerSpec]) -> None:
    whole, half = (kind(type=type_of(kind), learning_rate=0.05, weight_decay=decay) for decay in (0.2, 0.1))
    found, _ = trajectories.trajectory(whole, steps=10, shares={"weight_decay": lambda step: 0.5})
    trajectories.assert_equal(found, trajectories.trajectory(half, steps=10)[0])


def test_cautious_updates_move_only_where_gradient_and_direction_agree() -> None:
    spec = AdamW(learning_rate=0.05, weight_decay=0.0, wrappers=(Cautious(type="cautious"),))
    found, _ = trajectories.trajectory(spec, steps=30, rate=share)
    wanted = adamw(30, decay_type="decoupled", decay=0.0, peak=0.05, share=share, cautious=True)
    trajectories.assert_equal(found, wanted, within=2e-6)


def test_an_optimizer_with_one_learning_rate_refuses_groups_that_scale_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdamW, "owns_rate", True)
    for factor in (0.0, 1.0):
        groups = (Group(match="output", learning_rate_factor=factor),)
        AdamW(learning_rate=1.0, groups=groups).check_groups(trajectories.SHAPES)
    spec = AdamW(learning_rate=1.0, groups=(Group(match="output", learning_rate_factor=0.5),))
    with pytest.raises(ValueError, match=r"optimizer\.groups\.0: learning_rate_factor = 0\.5 cannot scale \"adamw\""):
        spec.check_groups(trajectories.SHAPES)


def test_states_inside_others_report_their_metrics() -> None:
    from typing import NamedTuple

    class Inner(NamedTuple):
        estimate: float

        def metrics(self):
            return {"estimate": self.estimate}

    class Outer(NamedTuple):
        inner: tuple[Inner, int]
        skipped: float

        def metrics(self):
            return {"skipped": self.skipped}

    assert metrics((3.0, Outer((Inner(2.0), 1), 5.0))) == {"skipped": 5.0, "estimate": 2.0}
