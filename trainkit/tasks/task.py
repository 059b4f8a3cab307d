"""What step, evaluator and loop ask of every task."""

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
    """From a batch to its loss and metrics. A task knows no loop."""

    metrics: ClassVar[Mapping[str, Statistic]] = {}
    """The statistics that `loss` returns, all zero. Those with a value are logged at each step as
    `train/NAME`."""

    @abstractmethod
    def loss(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> Loss:
        """Return the sums of losses and weights of a batch, as `trainkit.data.batches.layout` describes it.

        `key` is another one for each micro-batch of each step; of a validation set it is always the same, so that what
        is drawn for a row must come from `row_keys`.
        """

    def predict(self, model: Any, batch: Mapping[str, Array], *, key: PRNGKeyArray) -> tuple[Loss, Mapping[str, Array]]:
        """Return what `loss` does, and the predictions by name: those that the spec's `predictions` gives.

        Each is an array (N, …) of the items that are predicted, such as examples or tokens. Where there are any,
        `weights`, float32 (N,), is among them: 0 for items of padding and without a label. An evaluation calls this
        in place of `loss`, so that a task with predictions needs one forward pass for both.
        """
        return self.loss(model, batch, key=key), {}

    def report(self, *, loss: float, metrics: Mapping[str, Statistic], targets: int, bytes: int) -> dict[str, float]:
        """Return what an evaluation shows, by the last part of the metric's name.

        `loss` is the weighted mean, and `metrics` are those of `loss` added up over the set; `targets` (tokens that
        may be targets) and `bytes` are those of the set's documents, 0 where that says nothing.
        """
        return {"loss": loss, **values_of(metrics)}

    def reference(self, model: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return what the frozen reference model says of a batch: float32 arrays (B, …), those of the spec's
        `reference`. Batches then have them under these names."""
        raise NotImplementedError(f"{type(self).__name__} compares with no reference")

    def count(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return how many `tokens` (0 where that says nothing) and `samples` a batch on the host has, for throughput.

        Positions of padding are no tokens; rows of padding count as samples.
        """
        return {"tokens": tokens_in(batch), "samples": len(next(iter(batch.values())))}


def tokens_in(batch: Mapping[str, np.ndarray]) -> int:
    """Return the positions of a batch of texts that are no padding; 0 of anything else."""
    if "segments" in batch:
        return int(np.count_nonzero(batch["segments"]))
    return int(batch["filled"].sum()) if "filled" in batch else 0


def row_keys(batch: Mapping[str, Array], key: PRNGKeyArray) -> PRNGKeyArray:
    """Return a key for each row of a batch, (B,), that follows from `key` and the row's example alone.

    So the same is drawn for an example whichever rows stand beside it, and on however many devices.
    """
    return jax.vmap(lambda example: jax.random.fold_in(key, example))(batch["example"])


def segments_of(batch: Mapping[str, Array], length: int) -> Array:
    """Return which document each position belongs to, (B, T) int32, 0 being padding."""
    if "segments" in batch:
        return batch["segments"]
    return (jnp.arange(length) < batch["filled"][:, None]).astype(jnp.int32)
