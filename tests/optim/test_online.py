"""Online-to-non-convex conversion ends where the formulas of its learners end, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import trajectories
from trajectories import SHAPES, trajectory

from trainkit.optim.online import SCALING
from trainkit.recipe.optimizers.online import (
    AdaptiveFtrl,
    CoinBetting,
    LearnerSpec,
    MirrorDescent,
    OneCoin,
    OnlineDescent,
    OnlineToNonConvex,
)

RATE, STEPS = 0.05, 100
Params = dict[str, np.ndarray]


def zeros() -> Params:
    return {name: np.zeros(shape) for name, shape in SHAPES.items()}


def norm(tree: Params) -> float:
    return float(np.sqrt(sum((x**2).sum() for x in tree.values())))


def descent(delta: Params, g: Params, t: int, kept: dict) -> Params:
    moved = {name: d - RATE * (g[name] + 2.0 * d) for name, d in delta.items()}
    return {name: d * min(1, 0.3 / norm(moved)) for name, d in moved.items()}


def mirror_descent(delta: Params, g: Params, t: int, kept: dict) -> Params:
    return {name: 0.9 / (1 + RATE * 3.0) * (d - RATE * g[name]) for name, d in delta.items()}


def ftrl(delta: Params, g: Params, t: int, kept: dict) -> Params:
    m, v = kept.setdefault("m", zeros()), kept.setdefault("v", zeros())
    for name in g:
        m[name], v[name] = 0.9 * m[name] + 0.1 * g[name], 0.99 * v[name] + 0.01 * g[name] ** 2
    return {name: -RATE * m[name] / (np.sqrt(v[name]) + 1e-8) for name in g}


def coin_betting(delta: Params, g: Params, t: int, kept: dict) -> Params:
    total, gained = kept.setdefault("total", zeros()), kept.setdefault("gained", zeros())
    for name in g:
        total[name] += g[name] / 20
        gained[name] -= g[name] / 20 * delta[name]
    return {name: -total[name] / (t + 2) * (0.5 + gained[name]) for name in g}


def one_coin(delta: Params, g: Params, t: int, kept: dict) -> Params:
    against, size = kept.get("against", zeros()), kept.get("size", 0.0)
    along = (sum((g[name] * against[name]).sum() for name in g) / (norm(against) or 1) + 0.1 * size) / 20
    kept["total"] = kept.get("total", 0.0) + along
    kept["gained"] = kept.get("gained", 0.0) - along * size
    kept["size"] = -kept["total"] / (t + 2) * (0.5 + kept["gained"])
    kept["against"] = against = {name: 0.9 * m - g[name] - 0.1 * delta[name] for name, m in against.items()}
    return {name: kept["size"] * m / norm(against) for name, m in against.items()}


LEARNERS: list[tuple[LearnerSpec, Callable[..., Params]]] = [
    (OnlineDescent(type="descent", radius=0.3, regularization=2.0), descent),
    (MirrorDescent(discount=0.9, regularization=3.0), mirror_descent),
    (AdaptiveFtrl(type="ftrl", betas=(0.9, 0.99)), ftrl),
    (CoinBetting(type="coin-betting", wealth=0.5, lipschitz=20.0), coin_betting),
    (OneCoin(type="one-coin", wealth=0.5, lipschitz=20.0, discount=0.9, regularization=0.1), one_coin),
]


def conversion(scaling: str, learner: Callable[..., Params], rate: float) -> Params:
    """Return the parameters after steps in which `rate x update` is scaled by trainkit's random numbers."""
    params, ahead, delta, kept = trajectories.start(), trajectories.start(), zeros(), {}
    for t in range(STEPS):
        delta = learner(delta, trajectories.gradient(params, t), t, kept)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), t), SCALING)
        scale = {"exponential": jax.random.exponential, "uniform": jax.random.uniform, "none": lambda _: 1.0}[scaling]
        base = ahead if scaling == "uniform" else params
        params = {name: base[name] + float(scale(key)) * rate * delta[name] for name in params}
        ahead = {name: x + rate * delta[name] for name, x in ahead.items()}
    return params


@pytest.mark.parametrize(
    ("number", "scaling"), [(0, "uniform"), (1, "exponential"), (2, "none"), (3, "exponential"), (4, "uniform")]
)
def test_the_conversion_of_a_learner_ends_where_its_formulas_end(number: int, scaling: Any) -> None:
    learner, formula = LEARNERS[number]
    spec = OnlineToNonConvex(type="online-to-non-convex", learning_rate=RATE, learner=learner, scaling=scaling)
    found, state = trajectory(spec)
    # a learner without a rate has its updates multiplied by it
    wanted = conversion(scaling, formula, RATE if number >= 3 else 1.0)
    trajectories.assert_equal(found, wanted)
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert kept == spec.total_state_bytes(SHAPES)
