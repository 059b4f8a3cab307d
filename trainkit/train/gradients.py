"""The gradient of a task's loss over a batch.

A = accumulation (micro-batches in a step), M = sequences in a micro-batch over all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from trainkit.errors import TrainkitError
from trainkit.models.casting import cast
from trainkit.models.dropout import has_dropout, with_keys
from trainkit.models.master_weights import in_compute_dtype
from trainkit.models.probe import Reports, collect_reports
from trainkit.tasks import Loss, Task
from trainkit.train.state import DROPOUT, LOSS, State, key_of
from trainkit.train.statistics import MicroBatch

Batch = Mapping[str, Array]
#: The name in a batch of the numbers of its rows within the step, which a step has where its model has dropout.
ROWS = "rows"
#: How a model of one's own gets statistics of its layers.
NO_REPORTS = 'leave out "activations" and "attention", or run the layers with trainkit.models.stack.scan_layers'


@dataclass(frozen=True, kw_only=True)
class BatchGradient:
    """The gradient of a task's loss over a batch, summed in float32 over its micro-batches."""

    task: Task
    compute: jnp.dtype
    shardings: PyTree | None
    """The sharding of each gradient as soon as it exists; XLA's choice if None."""
    keeps_micro_batches: bool = False
    """Whether statistics need the micro-batches one by one."""

    def sums(self, state: State, params: PyTree, batch: Batch) -> tuple[PyTree, Loss, MicroBatch | None]:
        """Return the sums of the gradients and of the task's losses over all tokens, and the micro-batches if kept.

        Args:
            params: where the gradient is taken; everything else is that of `state`.
            batch: arrays (A, M, …).
        """
        accumulation, rows = jax.tree.leaves(dict(batch))[0].shape[:2]
        key = key_of(state, LOSS)
        if has_dropout(state.params):
            batch = {**batch, ROWS: jnp.arange(accumulation * rows).reshape(accumulation, rows)}
        baselines = self._baselines(state, params, batch)
        if accumulation == 1:
            whole = {**jax.tree.map(lambda x: x[0], dict(batch)), **baselines}
            return *self._of_micro_batch(state, params, whole, key), None
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)

        # one key for all micro-batches: a task draws by example, so that the split of the batch does not matter
        def add(sums: PyTree, micro_batch: Batch) -> tuple[PyTree, MicroBatch | None]:
            grads, loss = self._of_micro_batch(state, params, {**micro_batch, **baselines}, key)
            kept = None
            if self.keeps_micro_batches:
                kept = MicroBatch(jnp.square(optax.tree.norm(grads)), jnp.asarray(loss.weight))
            return jax.tree.map(jnp.add, sums, (grads, loss)), kept

        (grads, loss), micro_batches = jax.lax.scan(add, (zeros, no_loss(self.task)), dict(batch))
        return grads, loss, micro_batches

    def mean(self, state: State, params: PyTree, batch: Batch) -> tuple[Array, PyTree]:
        """Return the mean loss over all tokens, and its gradient. Arguments are those of `sums`."""
        grads, (total, weight, _), _ = self.sums(state, params, batch)
        divisor = jnp.where(weight > 0, weight, 1)
        return total / divisor, jax.tree.map(lambda g: g / divisor, grads)

    def reports(self, state: State, batch: Batch) -> Reports:
        """Return what the layers report of the first micro-batch, without dropout.

        Raises:
            TrainkitError: the layers of the model report nothing.
        """
        first: dict[str, Any] = jax.tree.map(lambda x: x[0], dict(batch))
        model = self._model(state, state.params, first)
        with collect_reports() as found:
            self.task.loss(model, first | dict(self.task.baselines), key=key_of(state, LOSS))
        if not found:
            raise TrainkitError("the layers of this model report nothing", where="statistics.compute", hint=NO_REPORTS)
        return found

    def _baselines(self, state: State, params: PyTree, batch: Batch) -> dict[str, Any]:
        return measure_baselines(self.task, lambda micro_batch: self._model(state, params, micro_batch), batch)

    def _model(self, state: State, params: PyTree, batch: Batch) -> Any:
        """Return the model in the compute dtype, with dropout if the batch has the numbers of its rows."""
        masters = in_compute_dtype(cast(params, jnp.float32), self.compute)
        model = eqx.combine(cast(state.frozen, self.compute), masters)
        return with_keys(model, key_of(state, DROPOUT), batch[ROWS]) if ROWS in batch else model

    def _of_micro_batch(self, state: State, params: PyTree, batch: Batch, key: PRNGKeyArray) -> tuple[PyTree, Loss]:
        def scaled_loss(masters: PyTree) -> tuple[Array, tuple[Loss, Array]]:
            loss = self.task.loss(self._model(state, masters, batch), batch, key=key)
            # scaled by the mean loss, so that float16 sees the same numbers for any size of the micro-batch
            scale = state.loss_scale.value / jnp.maximum(loss.weight, 1) if state.loss_scale else jnp.float32(1)
            return loss.sum * scale, (loss, scale)

        grads, (loss, scale) = jax.grad(scaled_loss, has_aux=True)(cast(params, jnp.float32))
        if self.shardings is not None:
            grads = jax.lax.with_sharding_constraint(grads, self.shardings)
        return jax.tree.map(lambda g: g / scale, grads) if state.loss_scale else grads, loss


def measure_baselines(task: Task, model_of: Callable[[Batch], Any], batch: Batch) -> dict[str, Any]:
    """Return what a task measures of a whole batch, (A, M, …), before it computes a loss; empty for most tasks.

    Args:
        model_of: returns the model for a micro-batch.
    """
    if not task.baselines:
        return {}

    def add(sums: PyTree, micro_batch: Batch) -> tuple[PyTree, None]:
        found = task.measure_baselines(model_of(micro_batch), micro_batch)
        return jax.tree.map(jnp.add, sums, dict(found)), None

    sums, _ = jax.lax.scan(add, dict(task.baselines), dict(batch))
    return jax.lax.stop_gradient(sums)


def no_loss(task: Task) -> Loss:
    """Return the zero to which the losses of batches are added, on the host."""
    return Loss(np.float32(0), np.float32(0), dict(task.metrics))
