"""The average of the parameters over the steps, updated after each one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.average import AverageSpec
from trainkit.recipe.spec import import_named

Averaging: TypeAlias = Callable[..., tuple[PyTree, Array]]
"""`(averages, count, *, params, moments, step)` → the averages after `step` updates, and how many parameters they
contain; `moments` is the optimizer state."""


def first_averages(params: PyTree) -> PyTree:
    """Return the averages before anything is averaged: a float32 copy of the parameters."""
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)


def build(
    spec: AverageSpec | None, optimizer: OptimizerSpec, names: PyTree[str], shapes: PyTree[Any], *, steps: int
) -> Averaging | None:
    """Return the update of the averages in a run of `steps`; None if nothing is averaged.

    Args:
        optimizer: its rule may compute the average itself.
        names, shapes: as for `trainkit.optim.build`.
    """
    if optimizer.averages_itself is not None:
        leaves = zip(jax.tree.leaves(names), jax.tree.leaves(shapes), strict=True)
        rules = [_moving_rule(optimizer, name, leaf.shape) for name, leaf in leaves]
        return _own_average(optimizer.averages_itself, rules)
    return None if spec is None else _running_average(spec, steps=steps)


def _moving_rule(optimizer: OptimizerSpec, name: str, shape: Shape) -> OptimizerSpec | None:
    """Return the rule of a parameter; None if a group freezes it."""
    return optimizer.owner(name, shape) if optimizer.rate_factor_of(name, shape) else None


def _own_average(function: str, rules: list[OptimizerSpec | None]) -> Averaging:
    """Return the update of the average that the rule computes: `function` as for `OptimizerSpec.own_average`."""
    averages_of = import_named(function)

    def update(_: PyTree, count: Array, *, params: PyTree, moments: PyTree, step: Array) -> tuple[PyTree, Array]:
        return averages_of(rules, moments, params), count + 1

    return update


def _running_average(spec: AverageSpec, *, steps: int) -> Averaging:
    """Return the update of an average, in float32.

    As in `torch.optim.swa_utils.AveragedModel`, the first parameters become the average, so that it has no bias.
    """
    start = spec.first_step(steps)

    def update(averages: PyTree, count: Array, *, params: PyTree, moments: PyTree, step: Array) -> tuple[PyTree, Array]:
        enters = (step >= start) & ((step - start) % spec.every == 0)
        share = jnp.where(count == 0, 1.0, jnp.where(enters, spec.share(count), 0.0))

        def moved(average: Array, p: Any) -> Array:
            # not average + share * (p - average), which with a share of 1 would not be exactly p
            return (1 - share) * average + share * p.astype(jnp.float32)

        return jax.tree.map(moved, averages, params), count + enters

    return update
