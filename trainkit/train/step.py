"""The step: one pure function.

A = accumulation (micro-batches in a step), M = sequences in a micro-batch over all devices, T = positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit import optim
from trainkit.errors import TrainkitError
from trainkit.models.casting import cast
from trainkit.models.dropout import has_dropout, with_keys
from trainkit.models.master_weights import in_compute_dtype
from trainkit.models.probe import Reports, probing
from trainkit.optim import LearningRate, ScheduledValue
from trainkit.optim.average import Averaging
from trainkit.parallel.precision import random_bits, to_bfloat16
from trainkit.recipe.sections.outputs import Statistics
from trainkit.tasks import Loss, Task
from trainkit.train.state import State, adjusted_scale
from trainkit.train.statistics import MicroBatch, SeenStep, measure, next_history

Batch = Mapping[str, Array]
Metrics = dict[str, Any]
"""Arrays and statistics by the metric's name."""
Step = Callable[[State, Batch], tuple[State, Metrics]]

#: Purposes of random numbers in a step and in an evaluation. The first state has 0 (`state.py`), samples have 1
#: (`infer/sampler.py`).
MOMENTS, PARAMETERS, LOSS, EVALUATION, DROPOUT, STATISTICS = 2, 3, 4, 5, 6, 7
#: The name in a batch of the numbers of its rows within the step, which a step has where its model has dropout.
ROWS = "rows"
#: How a model of one's own gets these statistics.
NO_REPORTS = 'leave out "activations" and "attention", or run the layers with trainkit.models.stack.scan_layers'
#: The metric with the sum of the weights. The loss is a mean only if it is above 0.
WEIGHT = "train/weight"


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
        nearby: what `grad_fn` of the optimizer computes in; `compute` if None.
    """
    of_micro_batches = statistics is not None and statistics.compares_micro_batches

    def model_of(state: State, masters: PyTree, dtype: jnp.dtype = compute) -> Any:
        return eqx.combine(cast(state.frozen, dtype), in_compute_dtype(masters, dtype))

    def reports(state: State, batch: Batch) -> Reports | None:
        """Return what layers report of the first micro-batch, without dropout; None if no statistic needs it."""
        if statistics is None or not statistics.probes_layers:
            return None
        model, micro_batch = model_of(state, cast(state.params, jnp.float32)), jax.tree.map(lambda x: x[0], dict(batch))
        with probing() as found:
            task.loss(model, micro_batch, key=_key_of(state, LOSS))
        if not found:
            raise TrainkitError("the layers of this model report nothing", where="statistics.compute", hint=NO_REPORTS)
        return found

    def gradients(
        state: State, params: PyTree, batch: Batch, key: PRNGKeyArray, dtype: jnp.dtype
    ) -> tuple[PyTree, Loss]:
        def scaled(masters: PyTree) -> tuple[Array, tuple[Loss, Array]]:
            model = model_of(state, masters, dtype)
            if ROWS in batch:
                model = with_keys(model, _key_of(state, DROPOUT), batch[ROWS])
            loss = task.loss(model, batch, key=key)
            # scaled by the mean loss, so that float16 sees the same numbers for any size of the micro-batch
            scale = state.loss_scale.value / jnp.maximum(loss.weight, 1) if state.loss_scale else jnp.float32(1)
            return loss.sum * scale, (loss, scale)

        grads, (loss, scale) = jax.grad(scaled, has_aux=True)(cast(params, jnp.float32))
        if gradient_shardings is not None:
            grads = jax.lax.with_sharding_constraint(grads, gradient_shardings)
        return jax.tree.map(lambda g: g / scale, grads) if state.loss_scale else grads, loss

    def accumulated(
        state: State, params: PyTree, batch: Batch, dtype: jnp.dtype = compute
    ) -> tuple[PyTree, Loss, MicroBatch | None]:
        """Return the sums of the gradients and of the task's losses, and the micro-batches if statistics need them."""
        accumulation, rows = jax.tree.leaves(dict(batch))[0].shape[:2]
        key = _key_of(state, LOSS)
        if has_dropout(state.params):
            batch = {**batch, ROWS: jnp.arange(accumulation * rows).reshape(accumulation, rows)}
        if accumulation == 1:
            return *gradients(state, params, jax.tree.map(lambda x: x[0], dict(batch)), key, dtype), None
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)

        # one key for all micro-batches: a task draws by example, so that the split of the batch does not matter
        def add(sums: PyTree, micro_batch: Batch) -> tuple[PyTree, MicroBatch | None]:
            grads, loss = gradients(state, params, micro_batch, key, dtype)
            own = MicroBatch(jnp.square(optax.tree.norm(grads)), jnp.asarray(loss.weight)) if of_micro_batches else None
            return jax.tree.map(jnp.add, sums, (grads, loss)), own

        (grads, loss), micro_batches = jax.lax.scan(add, (zeros, no_loss(task)), dict(batch))
        return grads, loss, micro_batches

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        sums, (total, weight, measured), micro_batches = accumulated(state, state.params, batch)

        divisor = jnp.where(weight > 0, weight, 1)
        norm = optax.tree.norm(sums) / divisor
        clip = jnp.minimum(1.0, max_grad_norm / jnp.maximum(norm, 1e-12)) if max_grad_norm else 1.0
        grads = jax.tree.map(lambda g: g * (clip / divisor), sums)

        rate = learning_rate(state.step, state.live.decay_start, state.live.decay_end) * state.live.rate_factor

        def grad_fn(params: PyTree) -> tuple[Array, PyTree]:
            grads, (total, weight, _), _ = accumulated(state, params, batch, compute if nearby is None else nearby)
            divisor = jnp.where(weight > 0, weight, 1)
            return total / divisor, jax.tree.map(lambda g: g / divisor, grads)

        extras: dict[str, Any] = {
            "key": _key_of(state, MOMENTS),
            "value": total / divisor,
            "learning_rate": rate,
            "grad_fn": grad_fn,
        }
        if schedules:
            extras["shares"] = {
                name: value.share(state.step, state.live.decay_start) for name, value in schedules.items()
            }
        directions, moments = optimizer.update(grads, state.optimizer, state.params, **extras)
        updates = jax.tree.map(lambda d: -rate * d, directions)
        params = _updated(updates, state.params, key=_key_of(state, PARAMETERS), rounding=rounding)
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
            loss, key = total / divisor, _key_of(state, STATISTICS)
            history, inside = state.history, reports(state, batch)
            seen = SeenStep(state.params, means, updates, loss, grad_fn, key, micro_batches, history, inside)
            metrics |= measure(statistics, seen) if statistics else {}
            after = replace(after, history=next_history(seen))
        return _unless_skipped(state, after, metrics)

    return step


def _key_of(state: State, purpose: int) -> PRNGKeyArray:
    """Return the key of a purpose in the step after `state`."""
    return key_of_step(state.key, purpose, state.step)


def key_of_step(key: PRNGKeyArray, purpose: int, step: int | Array) -> PRNGKeyArray:
    """Return the key of a purpose in the update from `step` to `step` + 1 of a run with this key."""
    return jax.random.fold_in(jax.random.fold_in(key, purpose), step)


def no_loss(task: Task) -> Loss:
    """Return the zero to which the losses of batches are added, on the host."""
    return Loss(np.float32(0), np.float32(0), dict(task.metrics))


def _updated(updates: PyTree, params: PyTree, *, key: PRNGKeyArray, rounding: str) -> PyTree:
    """Return the parameters plus their updates, added in float32, in the dtype of the parameters."""
    leaves, structure = jax.tree.flatten(params)
    for i, (p, u) in enumerate(zip(leaves, jax.tree.leaves(updates), strict=True)):
        exact = p.astype(jnp.float32) + u
        if p.dtype == jnp.bfloat16 and rounding == "stochastic":
            leaves[i] = to_bfloat16(exact, random_bits(jax.random.fold_in(key, i), p.shape))
        else:
            leaves[i] = exact.astype(p.dtype)
    return jax.tree.unflatten(structure, leaves)


def _unless_skipped(before: State, after: State, metrics: Metrics) -> tuple[State, Metrics]:
    """Return `after`, or `before` with its step and loss scale if all weights are 0 or float16 overflowed."""
    changed = metrics[WEIGHT] > 0
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
