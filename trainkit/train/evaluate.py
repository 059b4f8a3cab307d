"""Token-weighted loss over a whole set."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import EventLog
from trainkit.models.casting import cast
from trainkit.parallel.mesh import batch_sharding, replicated_sharding
from trainkit.plan import divisors
from trainkit.tasks import Loss, Task
from trainkit.train.memory import is_out_of_memory
from trainkit.train.prefetch import PATIENCE, HostBatch, to_device
from trainkit.train.state import State
from trainkit.train.step import no_loss

#: What an evaluation draws random numbers for: see `step.py`.
EVALUATION = 5


class EvaluationSet(Protocol):
    """Batches in order, once it is `ready`, which waits so many seconds at most. `targets` and `bytes` are those of its
    documents, `bytes` 0 where that says nothing."""

    @property
    def targets(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def ready(self, seconds: float, /) -> bool: ...
    def __len__(self) -> int: ...
    def batch(self, index: int, /) -> HostBatch: ...


class Evaluator:
    """Evaluates every set and writes one `evaluated` event for each."""

    def __init__(
        self,
        sets: Mapping[str, EvaluationSet],
        *,
        batch_size: int,
        task: Task,
        compute: jnp.dtype,
        mesh: Mesh,
        log: EventLog,
        interrupted: Callable[[], bool],
    ) -> None:
        self._sets = sets
        self._task = task
        self._mesh, self._sharding, self._whole = mesh, batch_sharding(mesh), replicated_sharding(mesh)
        self._log = log
        self._interrupted = interrupted

        def add(sums: Loss, state: State, batch: Mapping[str, Array], number: Array) -> Loss:
            # of the set alone: the same is drawn at every step, after a resume and on any devices
            key = jax.random.fold_in(jax.random.fold_in(state.key, EVALUATION), number)
            model = eqx.combine(cast(state.params, compute), cast(state.frozen, compute))
            loss = task.loss(model, {name: array[0] for name, array in batch.items()}, key=key)
            return jax.tree.map(jnp.add, sums, loss)

        # the sums lie there before as well: otherwise it would be compiled for where they begin and for where they end
        self._add = jax.jit(add, out_shardings=self._whole)
        self._rows, self._parts = batch_size, 1

    def __call__(self, state: State, step: int, only: Collection[str] | None = None) -> None:
        """Evaluate all sets, or some; returns early, without an event for the set at hand, where the run is to end
        now."""
        for name, data in self._sets.items():
            if only is not None and name not in only:
                continue
            started = time.perf_counter()
            self._log.write("evaluation_started", step=step, name=name)
            while not data.ready(PATIENCE):
                if self._interrupted():
                    return
            number = np.uint32(crc32(name.encode()))
            sums = self._summed(state, data, number)
            while sums is None:  # of what was computed nothing is left, and nothing is lost
                self._split(step)
                sums = self._summed(state, data, number)
            if self._interrupted():
                return
            report: dict[str, float] = {}
            if weight := float(sums.weight):
                mean = float(sums.sum) / weight
                report = self._task.report(loss=mean, metrics=sums.metrics, targets=data.targets, bytes=data.bytes)
            else:
                message = f"the validation set {name} has nothing to predict, so there is no loss to report"
                self._log.write("alert", step=step, kind="evaluation", message=message)
            self._log.write(
                "evaluated",
                step=step,
                name=name,
                metrics={f"validation/{name}/{metric}": value for metric, value in report.items()},
                seconds=round(time.perf_counter() - started, 3),
            )

    def _summed(self, state: State, data: EvaluationSet, number: np.uint32) -> Loss | None:
        """Return the sums on the host, of what there was before an interruption; None where there was no memory."""
        try:
            sums: Loss = jax.device_put(no_loss(self._task), self._whole)
            for index in range(len(data)):
                batch = data.batch(index)
                for part in range(self._parts):
                    rows = {name: np.array_split(array, self._parts)[part] for name, array in batch.items()}
                    arrays = to_device(rows, accumulation=1, sharding=self._sharding)
                    with jax.set_mesh(self._mesh):  # as in a step, by the mesh each device knows its rows
                        sums = self._add(sums, state, arrays, number)
                if self._interrupted():
                    break
            found: Loss = jax.device_get(sums)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        return found

    def _split(self, step: int) -> None:
        """Take fewer rows at once from now on. Raises TrainkitError where one row per device is too much."""
        devices = self._mesh.size
        more = [n for n in divisors(self._rows) if n > self._parts and self._rows // n % devices == 0]
        if not more:
            raise TrainkitError(
                f"there is no memory to evaluate {self._rows // self._parts} sequences at once",
                where="evaluate.batch_size",
                hint="use shorter sequences, a smaller model, or more devices",
                exit_code=FAILED,
            )
        self._parts = more[0]
        fewer = self._rows // self._parts
        message = f"no memory to evaluate so many sequences at once: continuing with {fewer};"
        message += f" to start with that number: evaluate.batch_size = {fewer}"
        self._log.write("alert", step=step, kind="out of memory", message=message)
