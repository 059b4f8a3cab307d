"""The step: one pure function.

A = accumulation (micro-batches in a step), M = sequences in a micro-batch over all devices, T = positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from trainkit.models.build import cast
from trainkit.optim.schedules import LearningRate
from trainkit.tasks import Task
from trainkit.train.state import State

Batch = Mapping[str, Array]
Metrics = dict[str, Float[Array, ""]]
Step = Callable[[State, Batch], tuple[State, Metrics]]


def make_step(
    *,
    task: Task,
    optimizer: optax.GradientTransformation,
    learning_rate: LearningRate,
    compute: jnp.dtype,
    max_grad_norm: float,
) -> Step:
    """`step(state, batch) -> (state, metrics)`; every array of `batch` is (A, M, …).

    The loss of a step is the sum of all its tokens' losses divided once by the sum of their weights, so that it is the
    same however the batch is split. Gradients are summed in float32.
    """

    def loss(params: PyTree, frozen: PyTree, batch: Batch) -> tuple[Array, Array]:
        return task.loss(eqx.combine(cast(params, compute), cast(frozen, compute)), batch)

    def gradients(state: State, batch: Batch) -> tuple[PyTree, Array, Array]:
        (total, weight), grads = jax.value_and_grad(loss, has_aux=True)(state.params, state.frozen, batch)
        return cast(grads, jnp.float32), total, weight

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        accumulation = jax.tree.leaves(dict(batch))[0].shape[0]
        if accumulation == 1:
            grads, total, weight = gradients(state, jax.tree.map(lambda x: x[0], dict(batch)))
        else:
            zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), state.params)
            sums = (zeros, jnp.float32(0), jnp.float32(0))

            def add(sums: PyTree, micro_batch: Batch) -> tuple[PyTree, None]:
                return jax.tree.map(jnp.add, sums, gradients(state, micro_batch)), None

            (grads, total, weight), _ = jax.lax.scan(add, sums, dict(batch))

        # a batch in which nothing is to be learned changes nothing
        weight = jnp.where(weight > 0, weight, 1)
        norm = optax.tree.norm(grads) / weight
        clip = jnp.minimum(1.0, max_grad_norm / jnp.maximum(norm, 1e-12)) if max_grad_norm else 1.0
        grads = jax.tree.map(lambda g: g * (clip / weight), grads)

        rate = learning_rate(state.step, state.live.decay_start) * state.live.rate_factor
        directions, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        updates = jax.tree.map(lambda d: -rate * d, directions)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "train/loss": total / weight,
            "optimizer/learning_rate": rate,
            "gradients/norm": norm,
            "updates/norm": optax.tree.norm(updates),
            "parameters/norm": optax.tree.norm(params),
        }
        return State(params, state.frozen, optimizer_state, state.step + 1, state.key, state.live), metrics

    return step
