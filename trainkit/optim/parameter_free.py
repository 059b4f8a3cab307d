"""Adam with an estimate of its own learning rate, as optax has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from optax import contrib

from trainkit.recipe.optimizers.parameter_free import DAdaptAdam, EstimatingAdam, Prodigy


class EstimateState(NamedTuple):
    """The state of an optimizer that estimates its learning rate."""

    inner: Any
    """Of optax's optimizer, with the estimate in `estim_lr` and the steps in `count`."""

    def metrics(self) -> dict[str, Array]:
        """Return the estimate, by which the learning rate is multiplied."""
        return {"estimated_rate": self.inner.estim_lr}


def build_prodigy(spec: Prodigy, *, decays: PyTree[float]) -> optax.GradientTransformationExtraArgs:
    """Return Prodigy, which decays parameters by learning rate x estimate x weight decay."""

    def at(rate: Any) -> optax.GradientTransformationExtraArgs:
        return contrib.prodigy(
            rate, spec.betas, eps=spec.eps, estim_lr0=spec.first_estimate, estim_lr_coef=spec.growth,
            weight_decay=0.0, safeguard_warmup=spec.safeguard_warmup,
        )  # fmt: skip

    return _with_estimated_rate(at, spec, decays)


def build_dadapt(spec: DAdaptAdam, *, decays: PyTree[float]) -> optax.GradientTransformationExtraArgs:
    """Return D-Adaptation of Adam, which decays parameters by learning rate x estimate x weight decay."""

    def at(rate: Any) -> optax.GradientTransformationExtraArgs:
        return contrib.dadapt_adamw(
            rate, betas=spec.betas, eps=spec.eps, estim_lr0=spec.first_estimate, weight_decay=0.0
        )

    return _with_estimated_rate(at, spec, decays)


def _with_estimated_rate(
    at: Callable[[Any], optax.GradientTransformationExtraArgs], spec: EstimatingAdam, decays: PyTree[float]
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer `at(learning rate)`, given the rate of each step, as directions for that rate."""
    b1, b2 = spec.betas

    def init(params: PyTree) -> EstimateState:
        return EstimateState(at(1.0).init(jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)))

    def update(
        grads: PyTree,
        state: EstimateState,
        params: PyTree,
        *,
        learning_rate: Array,
        shares: Mapping[str, Array] | None = None,
        **_: Any,
    ) -> tuple[PyTree, EstimateState]:
        full = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        decay_share = (shares or {}).get("weight_decay", 1.0)
        updates, after = at(learning_rate).update(grads, state.inner, full)
        t = state.inner.count + 1
        estimate = state.inner.estim_lr * jnp.sqrt(1 - b2**t) / (1 - b1**t)
        moves = learning_rate > 0
        scale = 1 / jnp.where(moves, learning_rate, 1)

        def direction(u: Array, p: Array, d: float) -> Array:
            return jnp.where(moves, -scale * u, 0) + estimate * d * decay_share * p

        # before the first rate above 0 the estimate would be 0 / 0
        estim_lr = jnp.where(jnp.isfinite(after.estim_lr), after.estim_lr, state.inner.estim_lr)
        return jax.tree.map(direction, updates, full, decays), EstimateState(after._replace(estim_lr=estim_lr))

    return optax.GradientTransformationExtraArgs(init, update)
