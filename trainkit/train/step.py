"""The step: one pure function.

A = accumulation (micro-batches in a step), M = sequences in a micro-batch over all devices, T = positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit import optim
from trainkit.optim import LearningRate, ScheduledValue
from trainkit.optim.average import Averaging
from trainkit.parallel.precision import random_bits, to_bfloat16
from trainkit.recipe.sections.guard import Guard
from trainkit.recipe.sections.outputs import Statistics
from trainkit.tasks import Task
from trainkit.train.gradients import Batch, BatchGradient
from trainkit.train.guard import judge
from trainkit.train.state import MOMENTS, PARAMETERS, STATISTICS, State, adjusted_scale, key_of
from trainkit.train.statistics import SeenStep, measure, next_history

Metrics = dict[str, Any]
"""Arrays and statistics by the metric's name."""
Step = Callable[[State, Batch], tuple[State, Metrics]]

#: The metric with the sum of the weights. The loss is a mean only if it is above 0.
WEIGHT = "train/weight"
#: The metrics of a step that a rollback left out.
WITHOUT_UPDATE: Mapping[str, float] = {WEIGHT: 0.0, "train/loss": 0.0, "updates/norm": 0.0, "guard/left_out": 1.0}


def make_step(
    *,
    task: Task,
    optimizer: optax.GradientTransformationExtraArgs,
    learning_rate: LearningRate,
    compute: jnp.dtype,
    max_grad_norm: float,
    rounding: Literal["stochastic", "nearest"] = "stochastic",
    averaging: Averaging | None = None,
    schedules: Mapping[str, ScheduledValue] = {},
    gradient_shardings: PyTree | None = None,
    statistics: Statistics | None = None,
    nearby: jnp.dtype | None = None,
    guard: Guard | None = None,
) -> Step:
    """Return `step(state, batch) -> (state, metrics)`; every array of `batch` is (A, M, …).

    The loss is the sum of all tokens' losses divided once by the sum of their weights, so that it does not depend on
    how the batch is split; only a model's auxiliary loss and in-batch negatives are those of each micro-batch.
    Gradients are summed in float32. If all weights are 0, only the step's number changes; if the state has a loss scale
    and a gradient is not finite, only that scale and the step's number.

    Args:
        rounding: of bfloat16 parameters, whose updates are computed in float32.
        averaging: updates the averages of the parameters; None if there are none.
        schedules: values of the optimizer that change over the run, by their names in [schedules].
        gradient_shardings: the sharding of each gradient as soon as it exists; XLA's choice if None.
        statistics: those that every call computes besides the usual metrics; None for none.
        guard: says which updates do not count; it needs `State.guard`, unless it decides nothing inside a step.
        nearby: what `grad_fn` of the optimizer and of the Hessian computes in; `compute` if None.
    """
    gradient = BatchGradient(
        task=task,
        compute=compute,
        shardings=gradient_shardings,
        keeps_micro_batches=statistics is not None and statistics.compares_micro_batches,
    )
    gradient_nearby = gradient if nearby is None else replace(gradient, compute=nearby)

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        sums, (total, weight, measured), micro_batches = gradient.sums(state, state.params, batch)
        divisor = jnp.where(weight > 0, weight, 1)
        norm = optax.tree.norm(sums) / divisor
        clip = jnp.minimum(1.0, max_grad_norm / jnp.maximum(norm, 1e-12)) if max_grad_norm else 1.0
        grads = jax.tree.map(lambda g: g * (clip / divisor), sums)

        rate = learning_rate(state.step, state.live.decay_start, state.live.decay_end) * state.live.rate_factor

        def grad_fn(params: PyTree) -> tuple[Array, PyTree]:
            return gradient_nearby.mean(state, params, batch)

        extras: dict[str, Any] = {
            "key": key_of(state, MOMENTS),
            "value": total / divisor,
            "learning_rate": rate,
            "grad_fn": grad_fn,
        }
        if schedules:
            extras["shares"] = _shares(schedules, state)
        directions, moments = optimizer.update(grads, state.optimizer, state.params, **extras)
        updates = jax.tree.map(lambda d: -rate * d, directions)
        params = _update(updates, state.params, key=key_of(state, PARAMETERS), rounding=rounding)
        metrics = {
            "train/loss": total / divisor,
            **{f"train/{name}": statistic for name, statistic in measured.items()},
            WEIGHT: weight,
            "optimizer/learning_rate": rate,
            "gradients/norm": norm,
            "updates/norm": optax.tree.norm(updates),
            **{f"optimizer/{name}": value for name, value in optim.metrics(moments).items()},
        }
        for name, scheduled in schedules.items():
            metrics |= {metric: value * extras["shares"][name] for metric, value in scheduled.values.items()}
        after = State(params, state.frozen, moments, state.step + 1, state.key, state.live)
        if averaging is not None:
            averages, count = averaging(
                state.averages, state.average_count, params=params, moments=moments, step=after.step
            )
            after = replace(after, averages=averages, average_count=count)
        if statistics is not None or state.history is not None:
            means = jax.tree.map(lambda g: g / divisor, sums)
            loss, key = total / divisor, key_of(state, STATISTICS)
            reports = gradient.reports(state, batch) if statistics and statistics.probes_layers else None
            mean = partial(gradient.mean, state, batch=batch)
            kept, history = micro_batches, state.history
            seen = SeenStep(state.params, means, updates, loss, mean, grad_fn, key, kept, history, reports)
            metrics |= measure(statistics, seen) if statistics else {}
            after = replace(after, history=next_history(seen))
        return _unless_skipped(state, after, metrics, guard)

    return step


def _shares(schedules: Mapping[str, ScheduledValue], state: State) -> dict[str, Any]:
    """Return the share of each scheduled value in the step after `state`."""
    return {name: value.share(state.step, state.live.decay_start) for name, value in schedules.items()}


def _update(updates: PyTree, params: PyTree, *, key: PRNGKeyArray, rounding: str) -> PyTree:
    """Return the parameters plus their updates, added in float32, in the dtype of the parameters."""
    leaves, structure = jax.tree.flatten(params)
    for i, (p, u) in enumerate(zip(leaves, jax.tree.leaves(updates), strict=True)):
        exact = p.astype(jnp.float32) + u
        if p.dtype == jnp.bfloat16 and rounding == "stochastic":
            leaves[i] = to_bfloat16(exact, random_bits(jax.random.fold_in(key, i), p.shape))
        else:
            leaves[i] = exact.astype(p.dtype)
    return jax.tree.unflatten(structure, leaves)


def _unless_skipped(before: State, after: State, metrics: Metrics, guard: Guard | None) -> tuple[State, Metrics]:
    """Return `after`, or `before` with its step, loss scale and guard if all weights are 0, float16 overflowed, or the
    guard skips the step."""
    changed = metrics[WEIGHT] > 0
    if guard is not None and before.guard is not None:
        counts, judged = judge(
            guard, before.guard, metrics, weight=metrics[WEIGHT], scaled=before.loss_scale is not None
        )
        changed &= counts
        after = replace(after, guard=judged)
    if before.loss_scale:
        finite = jnp.isfinite(metrics["gradients/norm"])
        changed &= finite
        scale = adjusted_scale(before.loss_scale, finite)
        after = replace(after, loss_scale=scale)
        metrics["precision/loss_scale"] = scale.value
    kept = ("params", "optimizer", "averages", "average_count", "history")
    values = jax.tree.map(
        lambda new, old: jnp.where(changed, new, old),
        *([getattr(state, name) for name in kept] for state in (after, before)),
    )
    after = replace(after, **dict(zip(kept, values, strict=True)))
    metrics["updates/norm"] = jnp.where(changed, metrics["updates/norm"], 0)
    metrics["parameters/norm"] = optax.tree.norm(after.params)
    return after, metrics
