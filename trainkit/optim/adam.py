"""Adam's relatives. AdamW itself is in `adamw.py`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from optax import contrib

from trainkit.optim.moments import store_averages
from trainkit.recipe.optimizers.adam import Adam, Adamax, Adan, AdEMAMix, Adopt, Lamb, NAdam, NAdamW

MU_NU = {"mu": True, "nu": False}


def _correction(decay: float | Array, t: Array) -> Array:
    """Return 1 - decay^t, to the last bit also where that is near 0: what an average has taken in after t steps."""
    if isinstance(decay, jax.Array):  # it has a schedule
        return -jnp.expm1(t * jnp.log(decay))
    return -jnp.expm1(t * math.log(decay)) if decay else jnp.float32(1)


class AdamState(NamedTuple):
    """What is switched off is None."""

    step: Array
    mu: PyTree | None
    nu: PyTree | None
    nu_max: PyTree | None


def build_adam(spec: Adam) -> optax.GradientTransformation:
    """Return Adam with the parts that the spec leaves on (Kingma & Ba 2015, algorithm 1)."""
    b1, b2 = spec.betas

    def init(params: PyTree) -> AdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamState(
            jnp.int32(0),
            zeros if spec.momentum else None,
            zeros if spec.preconditioner else None,
            zeros if spec.amsgrad else None,
        )

    def update(grads: PyTree, state: AdamState, params: PyTree | None = None) -> tuple[PyTree, AdamState]:
        t = state.step + 1
        correct1, correct2 = (
            _correction(b, t) if debias else 1.0 for b, debias in zip((b1, b2), spec.debias, strict=True)
        )
        mu, nu, nu_max, directions = None, None, None, grads
        if spec.momentum:
            mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
            ahead = _correction(b1, t + 1) if spec.debias[0] else 1.0
            directions = jax.tree.map(
                lambda m, g: b1 * m / ahead + (1 - b1) * g / correct1 if spec.nesterov else m / correct1, mu, grads
            )
        if spec.preconditioner:
            nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
            nu_max = jax.tree.map(jnp.maximum, state.nu_max, nu) if spec.amsgrad else None
            directions = jax.tree.map(
                lambda d, v: d / (jnp.sqrt(v / correct2) + spec.eps), directions, nu_max if spec.amsgrad else nu
            )
        return directions, AdamState(t, mu, nu, nu_max)

    return store_averages(optax.GradientTransformation(init, update), spec.moments, {**MU_NU, "nu_max": False})


class NAdamState(NamedTuple):
    """The state of NAdam: averages of the gradients (`mu`) and of their squares (`nu`)."""

    step: Array
    decays: Array
    """The product of the decays of the momentum so far."""
    mu: PyTree
    nu: PyTree


def build_nadam(spec: NAdam) -> optax.GradientTransformation:
    """Return Adam with Nesterov's momentum (Dozat 2016, algorithm 2)."""
    b1, b2 = spec.betas

    def decay_at(t: Array) -> Array:
        return b1 * (1 - 0.5 * 0.96 ** (t * spec.momentum_decay))

    def init(params: PyTree) -> NAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return NAdamState(jnp.int32(0), jnp.float32(1), zeros, zeros)

    def update(grads: PyTree, state: NAdamState, params: PyTree | None = None) -> tuple[PyTree, NAdamState]:
        t = state.step + 1
        now, after = decay_at(t), decay_at(t + 1)
        decays = state.decays * now
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)

        def direction(m: Array, v: Array, g: Array) -> Array:
            ahead = after * m / (1 - decays * after) + (1 - now) * g / (1 - decays)
            return ahead / (jnp.sqrt(v / _correction(b2, t)) + spec.eps)

        return jax.tree.map(direction, mu, nu, grads), NAdamState(t, decays, mu, nu)

    return store_averages(optax.GradientTransformation(init, update), spec.moments, MU_NU)


def build_nadamw(spec: NAdamW) -> optax.GradientTransformation:
    """Return Adam that looks ahead by one step of momentum, as optax's nadamw."""
    b1, b2 = spec.betas
    return store_averages(optax.scale_by_adam(b1, b2, spec.eps, nesterov=True), spec.moments, MU_NU)


def build_adamax(spec: Adamax) -> optax.GradientTransformation:
    """Return Adam in the infinity norm, as optax has it."""
    return store_averages(optax.scale_by_adamax(*spec.betas, spec.eps), spec.moments, MU_NU)


def build_adan(spec: Adan) -> optax.GradientTransformation:
    """Return Adan, as optax has it; the last gradient stays in float32."""
    return store_averages(optax.scale_by_adan(*spec.betas, spec.eps), spec.moments, {"m": True, "v": True, "n": False})


def build_adopt(spec: Adopt) -> optax.GradientTransformation:
    """Return ADOPT, as optax has it."""
    return store_averages(contrib.scale_by_adopt(*spec.betas, spec.eps, use_clipping=spec.clip), spec.moments, MU_NU)


def build_ademamix(spec: AdEMAMix) -> optax.GradientTransformation:
    """Return AdEMAMix, as optax has it, with the schedules of section 3.1 of the paper where `ramp` asks for them."""
    b1, b2, b3 = spec.betas
    slow, weight = (_slow_decay(b1, b3, spec.ramp), _weight(spec)) if spec.ramp else (b3, spec.alpha)
    inner = contrib.scale_by_ademamix(b1, b2, slow, weight, spec.eps)
    return store_averages(inner, spec.moments, {"m1": True, "m2": True, "nu": False})


def _weight(spec: AdEMAMix) -> Any:
    return lambda step: spec.alpha * jnp.minimum((step + 1) / spec.ramp, 1.0)


def _slow_decay(fast: float, slow: float, ramp: int) -> Any:
    """Return the decay of the slow average over the steps: linear in its half-life, from that of the fast one."""

    def decay(step: Array) -> Array:
        share = jnp.minimum((step + 1) / ramp, 1.0)
        # a schedule may take the fast decay down to 0
        log_fast, log_slow = jnp.log(jnp.maximum(fast, 1e-30)), jnp.log(slow)
        risen = jnp.exp(log_fast * log_slow / ((1 - share) * log_slow + share * log_fast))
        return jnp.minimum(risen, slow)

    return decay


def build_lamb(spec: Lamb, *, stacked: bool) -> optax.GradientTransformation:
    """Return Adam; the trust ratio follows weight decay, as `norms.trust_ratio`."""
    b1, b2 = spec.betas
    return store_averages(optax.scale_by_adam(b1, b2, spec.eps), spec.moments, MU_NU)
