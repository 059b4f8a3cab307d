"""From [optimizer] and [schedule] to a gradient transformation over all trained parameters, and its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike, PyTree

from trainkit.optim.decay import decayed
from trainkit.recipe.optimizers.spec import OptimizerSpec
from trainkit.recipe.sections.adapter import Adapter
from trainkit.recipe.sections.schedule import NEVER, ScheduleSpec
from trainkit.recipe.spec import implementation_of, import_named


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

    An update is given, as extra arguments: a fresh `key`; the mean loss as `value`; the `learning_rate` of this step;
    and `grad_fn(params) -> (value, gradients)`, which evaluates the step's whole batch at other parameters.

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
    rule = _wrapped(_by_rule(rules, _transformation), spec, "rule")
    transforms = [rule]
    if any(jax.tree.leaves(decays)):
        transforms = [*decayed(rule, rules, decays)]
    if any(rule.finish for rule in jax.tree.leaves(rules)):
        transforms.append(_by_rule(rules, _finish))
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        transforms.append(optax.stateless(lambda u, _: jax.tree.map(lambda u, f: u * f, u, factors)))
    return _wrapped(optax.chain(*transforms), spec, "update")


def _wrapped(
    inner: optax.GradientTransformation, spec: OptimizerSpec, around: str
) -> optax.GradientTransformationExtraArgs:
    wrapped = optax.with_extra_args_support(inner)
    for wrapper in spec.wrappers:
        if wrapper.around == around:
            wrapped = implementation_of(wrapper).build(wrapper, wrapped)
    return wrapped


def _by_rule(
    rules: PyTree[OptimizerSpec], transformation: Callable[[OptimizerSpec], optax.GradientTransformation]
) -> optax.GradientTransformation:
    """Return one transformation in which every parameter has the `transformation` of its own rule.

    Where all have the same rule the state is that rule's alone, so that its leaves have the same paths as ever.
    """
    distinct: list[OptimizerSpec] = []
    for rule in jax.tree.leaves(rules):
        if rule not in distinct:
            distinct.append(rule)
    if len(distinct) == 1:
        return transformation(distinct[0])
    labels = [f"{number}-{rule.type}" for number, rule in enumerate(distinct)]
    transforms = {label: transformation(rule) for label, rule in zip(labels, distinct, strict=True)}
    return optax.partition(transforms, jax.tree.map(lambda rule: labels[distinct.index(rule)], rules))


def _transformation(rule: OptimizerSpec) -> optax.GradientTransformation:
    found = implementation_of(rule)
    return found(rule) if isfunction(found) else found.build(rule)


def _finish(rule: OptimizerSpec) -> optax.GradientTransformation:
    return import_named(rule.finish)(rule) if rule.finish else optax.identity()
