"""Token-weighted loss over a whole set."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array

from trainkit.events.log import EventLog
from trainkit.models.build import cast
from trainkit.tasks import Task
from trainkit.train.feed import HostBatch, to_device
from trainkit.train.state import State

Sums = tuple[Array, Array]


class EvaluationSet(Protocol):
    """Batches in order; `tokens` and `bytes` are those of its documents, `bytes` 0 where that says nothing."""

    @property
    def tokens(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, index: int, /) -> HostBatch: ...


class Evaluator:
    """Evaluates every set and writes one `evaluated` event for each."""

    def __init__(
        self,
        sets: Mapping[str, EvaluationSet],
        *,
        task: Task,
        compute: jnp.dtype,
        sharding: NamedSharding,
        log: EventLog,
        interrupted: Callable[[], bool],
    ) -> None:
        self._sets = sets
        self._task = task
        self._sharding = sharding
        self._log = log
        self._interrupted = interrupted

        def add(sums: Sums, state: State, batch: Mapping[str, Array]) -> Sums:
            model = eqx.combine(cast(state.params, compute), cast(state.frozen, compute))
            total, weight = task.loss(model, {name: array[0] for name, array in batch.items()})
            return sums[0] + total, sums[1] + weight

        self._add = jax.jit(add)

    def __call__(self, state: State, step: int) -> None:
        """Evaluate all sets; returns early, without an event for the set at hand, where the run is to end now."""
        for name, data in self._sets.items():
            started = time.perf_counter()
            self._log.write("evaluation_started", step=step, name=name)
            sums = (jnp.float32(0), jnp.float32(0))
            for index in range(len(data)):
                sums = self._add(sums, state, to_device(data.batch(index), accumulation=1, sharding=self._sharding))
                if self._interrupted():
                    return
            total, weight = (float(x) for x in jax.device_get(sums))
            report = self._task.report(loss=total / (weight or 1), tokens=data.tokens, bytes=data.bytes)
            self._log.write(
                "evaluated",
                step=step,
                name=name,
                metrics={f"validation/{name}/{metric}": value for metric, value in report.items()},
                seconds=round(time.perf_counter() - started, 3),
            )
