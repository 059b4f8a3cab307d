"""The interface of a task to the step, the evaluator and the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from trainkit.tasks.statistics import Scalar, Statistic, values_of


class Loss(NamedTuple):
    """Sums over a batch. Those of several batches add up leaf by leaf, and are divided once, at the end."""

    sum: Scalar
    """Of the weighted losses; float32."""
    weight: Scalar
    """Of the weights; float32."""
    metrics: Mapping[str, Statistic] = {}
    """What else was measured, by the last part of the metric's name."""


class Task(ABC):
    """Turns a batch into its loss and metrics. A task does not know the loop."""

    metrics: ClassVar[Mapping[str, Statistic]] = {}
    """The statistics that `loss` returns, all zero. Those with a value are logged at each step as
    `train/NAME`."""
    baselines: ClassVar[Mapping[str, Statistic]] = {}
    """The statistics that `measure_baselines` returns, all zero; empty if the loss of an example depends on no other
    example."""

    @abstractmethod
    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> Loss:
        """Return the sums of losses and weights of a batch, whose arrays `trainkit.data.batches.layout` describes.

        `key` differs between all micro-batches and steps, and is always the same for a validation set. So random
        numbers for a row must come from `row_keys`. The batch also has the `baselines`, by their names.
        """

    def measure_baselines(self, model: Any, batch: Mapping[str, Array]) -> Mapping[str, Statistic]:
        """Return what the loss of each example needs to know about all of them, such as a mean, without a gradient.

        A step adds these up over its whole batch before it computes any loss, and an evaluation over its set. So the
        loss depends neither on the size of the micro-batch nor on that of an evaluation's batch.
        """
        return {}

    def predict(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> tuple[Loss, Mapping[str, Array]]:
        """Return the result of `loss`, and the predictions by name: those that the spec's `predictions` lists.

        Each is an array (N, …) of the predicted items, such as examples or tokens. `weights`, float32 (N,), is among
        them: 0 for padding and items without a label. An evaluation calls this instead of `loss`, so that both need one
        forward pass.
        """
        return self.loss(model, batch, key=key), {}

    def report(self, *, loss: float, metrics: Mapping[str, Statistic], targets: int, bytes: int) -> dict[str, float]:
        """Return the values that an evaluation reports, by the last part of the metric's name.

        Args:
            loss: the weighted mean.
            metrics: those of `loss`, added up over the set.
            targets: how many tokens of the set's documents may be targets; 0 if unknown.
            bytes: the bytes of the set's documents; 0 if unknown.
        """
        return {"loss": loss, **values_of(metrics)}

    def reference(self, model: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the frozen reference model computes for a batch: float32 arrays (B, …), as the spec's `reference`
        lists.

        Batches then contain them under these names.
        """
        raise NotImplementedError(f"{type(self).__name__} compares with no reference")

    def count(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the `tokens` (0 if it has none) and `samples` of a batch on the host, for throughput.

        Padding does not count as tokens; rows of padding count as samples.
        """
        return {"tokens": tokens_in(batch), "samples": len(next(iter(batch.values())))}


def tokens_in(batch: Mapping[str, np.ndarray]) -> int:
    """Return the positions of a batch of texts that are no padding; 0 of anything else."""
    if "segments" in batch:
        return int(np.count_nonzero(batch["segments"]))
    return int(batch["filled"].sum()) if "filled" in batch else 0


def row_keys(batch: Mapping[str, Array], key: PRNGKeyArray) -> PRNGKeyArray:
    """Return a key for each row of a batch, (B,), that depends only on `key` and the row's example.

    So the same is drawn for an example whatever the other rows and the number of devices are.
    """
    return jax.vmap(lambda example: jax.random.fold_in(key, example))(batch["example"])


def segments_of(batch: Mapping[str, Array], length: int) -> Array:
    """Return which document each position belongs to, (B, T) int32, 0 being padding."""
    if "segments" in batch:
        return batch["segments"]
    return (jnp.arange(length) < batch["filled"][:, None]).astype(jnp.int32)
