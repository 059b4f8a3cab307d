"""Schedule-free learning: the rule of the iterates, and then their average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.parameter_free import ScheduleFree
from trainkit.recipe.optimizers.spec import OptimizerSpec


def build(spec: ScheduleFree) -> optax.GradientTransformation:
    """Return the rule of the iterates: Adam without momentum, or the gradient itself."""
    if spec.base == "sgd":
        return optax.identity()
    rule = optax.scale_by_rms(spec.betas[1], spec.eps, eps_in_sqrt=False, bias_correction=True)
    # optax would take the type of the parameters, which may be bfloat16
    return optax.GradientTransformation(lambda params: rule.init(optax.tree.cast(params, jnp.float32)), rule.update)


class AverageState(NamedTuple):
    """The iterate of a schedule-free rule, and what its average needs."""

    iterate: PyTree
    """z of the paper, in float32. The parameters are y, between z and the average x."""
    weights: Array
    """The sum of the weights of the iterates."""
    greatest_rate: Array
    step: Array


def average(spec: ScheduleFree) -> optax.GradientTransformationExtraArgs:
    """Return directions of the iterates → those of the parameters (Defazio et al. 2024, equations 2 to 4).

    With the rate r, the share c of the new iterate in the average and b = betas[0]: z' = z - r d and
    y' = (1 - c) y + c z - r (1 - b (1 - c)) d, whose direction is (y - y') / r.
    """

    def init(params: PyTree) -> AverageState:
        iterate = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return AverageState(iterate, jnp.float32(0), jnp.float32(0), jnp.int32(0))

    def update(
        directions: PyTree, state: AverageState, params: PyTree, *, learning_rate: Array, **_: Any
    ) -> tuple[PyTree, AverageState]:
        step, rate = state.step + 1, jnp.asarray(learning_rate, jnp.float32)
        greatest = jnp.maximum(state.greatest_rate, rate)
        weight = step.astype(jnp.float32) ** spec.power * greatest**spec.rate_power
        weights = state.weights + weight
        share = jnp.where(weights > 0, weight / jnp.maximum(weights, 1e-38), 0)
        along = 1 - spec.betas[0] * (1 - share)
        pull = jnp.where(rate > 0, share / jnp.where(rate > 0, rate, 1), 0)

        def moved(d: Array, p: Array, z: Array) -> Array:
            return along * d + pull * (p.astype(jnp.float32) - z)

        iterate = jax.tree.map(lambda z, d: z - rate * d, state.iterate, directions)
        after = AverageState(iterate, weights, greatest, step)
        return jax.tree.map(moved, directions, params, state.iterate), after

    return optax.GradientTransformationExtraArgs(init, update)


def averages(rules: Sequence[OptimizerSpec | None], state: PyTree, params: PyTree) -> PyTree:
    """Return x, the average of the iterates, in float32; parameters that are frozen or have another rule as they are.

    The parameters are y = (1 - b) z + b x, and z is in `state`, which may contain states of other rules too.

    Args:
        rules: of the leaves of `params`; None for frozen ones, whose iterates move although they do not.
    """
    leaves, structure = jax.tree.flatten(params)
    found = [leaf.astype(jnp.float32) for leaf in leaves]
    for part in jax.tree.leaves(state, is_leaf=_is_average):
        if not _is_average(part):
            continue
        for i, z in enumerate(jax.tree.leaves(part.iterate, is_leaf=_is_masked)):
            rule = rules[i]
            if not _is_masked(z) and rule is not None:
                assert isinstance(rule, ScheduleFree)
                found[i] = (found[i] - (1 - rule.betas[0]) * z) / rule.betas[0]
    return jax.tree.unflatten(structure, found)


def _is_average(node: Any) -> bool:
    return isinstance(node, AverageState)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
