"""From [optimizer] and [schedule] to a gradient transformation over all trained parameters, and its learning rate."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike, PyTree

from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.optimizer import OptimizerSpec
from trainkit.recipe.sections.schedule import NEVER, ScheduleSpec
from trainkit.recipe.spec import implementation_of


class LearningRate(Protocol):
    def __call__(self, step: ArrayLike, decay_start: ArrayLike = NEVER, /) -> ArrayLike:
        """Return the rate of the update after `step` others; `decay_start` is where a command began the decay."""


def learning_rate(schedule: ScheduleSpec, *, peak: float, steps: int) -> LearningRate:
    """Return the learning rate as a function of the step (updates done, from 0), for a run of `steps`."""
    return lambda step, decay_start=NEVER: schedule.rate(step, peak=peak, steps=steps, decay_start=decay_start, xp=jnp)


def build(
    spec: OptimizerSpec, names: PyTree[str], shapes: PyTree[Any], *, adapter: Adapter | None = None
) -> optax.GradientTransformationExtraArgs:
    """Return gradients → descent directions; the step multiplies them by the negative learning rate.

    An update is given, as extra arguments: a fresh `key`; the mean loss as `value`; and `grad_fn(params) -> (value,
    gradients)`, which evaluates the step's whole batch at other parameters.

    Args:
        names: the trained parameters with every leaf replaced by its path.
        shapes: the same with anything that has a `shape`.
        adapter: whose parameters these are, where the model itself is frozen. Its second matrices learn faster by
            `learning_rate_ratio` (LoRA+, Hayou et al. 2024).
    """
    rules = jax.tree.map(lambda name, leaf: spec.owner(name, leaf.shape), names, shapes)
    decays = jax.tree.map(lambda name, leaf: spec.decay_of(name, leaf.shape), names, shapes)

    def factor(name: str, leaf: Any) -> float:
        ratio = adapter.learning_rate_ratio if adapter and name.endswith(".b") else 1.0
        return spec.rate_factor_of(name, leaf.shape) * ratio

    factors = jax.tree.map(factor, names, shapes)
    transforms = [_by_rule(rules)]
    if any(jax.tree.leaves(decays)):
        transforms.append(
            optax.stateless(lambda u, p: jax.tree.map(lambda u, p, d: u + d * p if d else u, u, p, decays))
        )
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        transforms.append(optax.stateless(lambda u, _: jax.tree.map(lambda u, f: u * f, u, factors)))
    return optax.with_extra_args_support(optax.chain(*transforms))


def _by_rule(rules: PyTree[OptimizerSpec]) -> optax.GradientTransformation:
    """Return one transformation in which every parameter is updated by its own rule.

    Where all have the same rule the state is that rule's alone, so that its leaves have the same paths as ever.
    """
    distinct: list[OptimizerSpec] = []
    for rule in jax.tree.leaves(rules):
        if rule not in distinct:
            distinct.append(rule)
    if len(distinct) == 1:
        return _transformation(distinct[0])
    labels = [f"{number}-{rule.type}" for number, rule in enumerate(distinct)]
    transforms = {label: _transformation(rule) for label, rule in zip(labels, distinct, strict=True)}
    return optax.partition(transforms, jax.tree.map(lambda rule: labels[distinct.index(rule)], rules))


def _transformation(rule: OptimizerSpec) -> optax.GradientTransformation:
    return implementation_of(rule).build(rule)
