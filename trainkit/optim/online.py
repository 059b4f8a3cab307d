"""Online-to-non-convex conversion: what an online learner chooses, scaled at random, is the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.optim.moments import store_averages
from trainkit.recipe.optimizers.online import (
    AdaptiveFtrl,
    CoinBetting,
    MirrorDescent,
    OneCoin,
    OnlineDescent,
    OnlineToNonConvex,
)
from trainkit.recipe.spec import implementation_of

#: The purpose of the random number of a step.
SCALING = 1 << 30


class Learner(NamedTuple):
    """An online learner: it begins with updates of 0."""

    init: Callable[[PyTree], Any]
    """Parameters → its state."""
    update: Callable[[PyTree, Any, PyTree, Array], tuple[PyTree, Any]]
    """Gradients, its state, the last update and the learning rate → the next update, and its state."""
    without_rate: bool = False
    """Whether it needs no learning rate, which then multiplies its updates."""


class OnlineState(NamedTuple):
    """The last update, and the state of the learner that chose it."""

    delta: PyTree
    """The update that the learner chose last."""
    learner: Any
    rest: PyTree | None
    """Of uniform scaling: the rest of the last update, by which the next step begins."""


def build(spec: OnlineToNonConvex) -> optax.GradientTransformationExtraArgs:
    """Return the conversion of an online learner (Cutkosky et al. 2023, algorithm 1; Zhang & Cutkosky 2024, algorithm
    1). Parameters move by `random number x update`; where the learning rate is 0 they stay."""
    learner: Learner = implementation_of(spec.learner)(spec.learner)
    uniform = spec.scaling == "uniform"

    def init(params: PyTree) -> OnlineState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return OnlineState(zeros, learner.init(params), zeros if uniform else None)

    def update(
        grads: PyTree,
        state: OnlineState,
        params: PyTree | None = None,
        *,
        learning_rate: Array,
        key: PRNGKeyArray,
        **_: Any,
    ) -> tuple[PyTree, OnlineState]:
        rate = jnp.asarray(learning_rate, jnp.float32)
        delta, after = learner.update(grads, state.learner, state.delta, rate)
        whole = jax.tree.map(lambda d: rate * d, delta) if learner.without_rate else delta
        scale = _random(spec.scaling, jax.random.fold_in(key, SCALING))
        moved, rest = jax.tree.map(lambda u: scale * u, whole), state.rest
        if uniform:
            moved = jax.tree.map(jnp.add, moved, rest)
            rest = jax.tree.map(lambda r, u: jnp.where(rate > 0, (1 - scale) * u, r), rest, whole)
        over_rate = jnp.where(rate > 0, 1 / jnp.where(rate > 0, rate, 1), 0)
        return jax.tree.map(lambda m: -over_rate * m, moved), OnlineState(delta, after, rest)

    return store_averages(optax.GradientTransformationExtraArgs(init, update), "float32", {})


def _random(scaling: str, key: PRNGKeyArray) -> Array:
    if scaling == "exponential":
        return jax.random.exponential(key)
    return jax.random.uniform(key) if scaling == "uniform" else jnp.float32(1)


def descent(spec: OnlineDescent) -> Learner:
    """Return steps against the gradient, kept within the ball."""

    def update(grads: PyTree, state: None, delta: PyTree, rate: Array) -> tuple[PyTree, None]:
        delta = jax.tree.map(lambda d, g: d - rate * (g + spec.regularization * d), delta, grads)
        if spec.radius:
            share = jnp.minimum(1, spec.radius / jnp.maximum(optax.tree.norm(delta), 1e-30))
            delta = jax.tree.map(lambda d: share * d, delta)
        return delta, None

    return Learner(lambda params: None, update)


def mirror_descent(spec: MirrorDescent) -> Learner:
    """Return steps against the gradient that shrink the last update."""

    def update(grads: PyTree, state: None, delta: PyTree, rate: Array) -> tuple[PyTree, None]:
        share = spec.discount / (1 + rate * spec.regularization)
        return jax.tree.map(lambda d, g: share * (d - rate * g), delta, grads), None

    return Learner(lambda params: None, update)


class FtrlState(NamedTuple):
    """The averages of the gradients (`mu`) and of their squares (`nu`)."""

    mu: PyTree
    nu: PyTree


def ftrl(spec: AdaptiveFtrl) -> Learner:
    """Return averages of gradients over the roots of averages of squares."""
    b1, b2 = spec.betas

    def init(params: PyTree) -> FtrlState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FtrlState(zeros, zeros)

    def update(grads: PyTree, state: FtrlState, delta: PyTree, rate: Array) -> tuple[PyTree, FtrlState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        return jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + spec.eps), mu, nu), FtrlState(mu, nu)

    return Learner(init, update)


class BetState(NamedTuple):
    """What a learner that bets has seen and won."""

    step: Array
    total: PyTree
    """The sum of the gradients."""
    gained: PyTree
    """What the bets have won."""


def _first_state(zeros: PyTree) -> BetState:
    return BetState(jnp.int32(0), zeros, zeros)


def _bet(grads: PyTree, state: BetState, bets: PyTree, wealth: float) -> tuple[PyTree, BetState]:
    """Return the next bets, for gradients that are at most 1 (Orabona 2019, algorithm 9.2)."""
    step = state.step + 1
    total = jax.tree.map(jnp.add, state.total, grads)
    gained = jax.tree.map(lambda won, g, bet: won - g * bet, state.gained, grads, bets)
    bets = jax.tree.map(lambda s, won: -s / (step + 1) * (wealth + won), total, gained)
    return bets, BetState(step, total, gained)


def coin_betting(spec: CoinBetting) -> Learner:
    """Return a bet for every number."""

    def update(grads: PyTree, state: BetState, delta: PyTree, rate: Array) -> tuple[PyTree, BetState]:
        return _bet(jax.tree.map(lambda g: g / spec.lipschitz, grads), state, delta, spec.wealth)

    return Learner(lambda params: _first_state(jax.tree.map(jnp.zeros_like, params)), update, without_rate=True)


class OneCoinState(NamedTuple):
    """The bet on the size of the update, and the gradients that it is against."""

    bet: BetState
    size: Array
    """The last bet: the size of the update."""
    against: PyTree
    """The discounted sum of the gradients, negated."""


def one_coin(spec: OneCoin) -> Learner:
    """Return one bet on the norm of the update, whose direction follows the regularized leader in the unit ball."""

    def init(params: PyTree) -> OneCoinState:
        return OneCoinState(_first_state(jnp.float32(0)), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))

    def update(grads: PyTree, state: OneCoinState, delta: PyTree, rate: Array) -> tuple[PyTree, OneCoinState]:
        along = optax.tree.vdot(grads, _normalized(state.against)) + spec.regularization * state.size
        size, bet = _bet(along / spec.lipschitz, state.bet, state.size, spec.wealth)
        against = jax.tree.map(
            lambda m, g, d: spec.discount * m - g - spec.regularization * d, state.against, grads, delta
        )
        return jax.tree.map(lambda u: size * u, _normalized(against)), OneCoinState(bet, size, against)

    return Learner(init, update, without_rate=True)


def _normalized(tree: PyTree) -> PyTree:
    norm = optax.tree.norm(tree)
    return jax.tree.map(lambda x: x / jnp.maximum(norm, 1e-30), tree)
