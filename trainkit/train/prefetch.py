"""Batches from host to device, a few steps ahead."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainkit.parallel import agreement
from trainkit.plan import BatchSplit

#: Seconds of one wait for a batch. Between two waits the loop handles signals and commands.
PATIENCE = 0.2

HostBatch = Mapping[str, np.ndarray]
DeviceBatch = dict[str, jax.Array]


class Batches(Protocol):
    """Gives the batch of any step."""

    def __call__(self, step: int, rows: np.ndarray | None = None, /) -> HostBatch:
        """Return the batch of a step, or only some rows of it, in ascending order."""


def to_device(batch: HostBatch, *, accumulation: int, sharding: NamedSharding) -> DeviceBatch:
    """Return arrays (B, …) as arrays (accumulation, B / accumulation, …) on the mesh.

    On a mesh over several processes `batch` holds this process's rows: see `own_rows`.
    """
    put = jax.device_put if sharding.is_fully_addressable else _put_own
    return {name: put(array.reshape(accumulation, -1, *array.shape[1:]), sharding) for name, array in batch.items()}


def whole_to_device(batch: HostBatch, *, sharding: NamedSharding) -> DeviceBatch:
    """Return arrays (B, …) as arrays (1, B, …) on the mesh. Each process has the whole batch, and uses its own rows."""

    def put(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback((1, *array.shape), sharding, lambda index: array[None][index])

    return {name: put(array) for name, array in batch.items()}


def _put_own(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_process_local_data(sharding, array)


def own_rows(split: BatchSplit, sharding: NamedSharding) -> np.ndarray | None:
    """Return the numbers of a batch's rows for the devices of this process, (rows,), in ascending order; None for all
    rows."""
    shape = (split.accumulation, split.global_size // split.accumulation)
    own = np.zeros(shape, bool)
    for place in sharding.addressable_devices_indices_map(shape).values():
        own[place] = True
    return None if own.all() else np.flatnonzero(own)


class Fed(NamedTuple):
    """The batch of a step."""

    batch: DeviceBatch | None
    size: Mapping[str, int]
    """The tokens and samples of the whole batch, extrapolated from this process's rows."""
    waited: float
    """Seconds for which the loop waited for it."""


class Prefetch:
    """Batches of the steps `first` to `last` - 1, made by a thread while the device computes.

    It caches a pure function: dropping it at any time loses nothing.
    """

    def __init__(
        self,
        batch: Batches,
        *,
        count: Callable[[HostBatch], Mapping[str, int]],
        first: int,
        last: int,
        split: BatchSplit,
        sharding: NamedSharding,
        size_at: Callable[[int], int] | None = None,
        depth: int = 2,
    ) -> None:
        """Args:
        count: `Task.count`.
        split: of the largest batches.
        size_at: returns the sequences of the batch of a step; None if all are as large.
        depth: the number of batches that wait on the device.
        """
        ready = self._ready = queue.Queue[tuple[DeviceBatch, Mapping[str, int]] | BaseException](depth)
        self._item: tuple[DeviceBatch, Mapping[str, int]] | BaseException | None = None
        closed = self._closed = threading.Event()

        def put(item: tuple[DeviceBatch, Mapping[str, int]] | BaseException) -> None:
            while not closed.is_set():
                try:
                    return ready.put(item, timeout=0.2)
                except queue.Full:
                    continue

        def work() -> None:
            try:
                split_of = lru_cache(lambda size: split.of_size(size))
                rows_of = lru_cache(lambda size: own_rows(split_of(size), sharding))
                for step in range(first, last):
                    size = split.global_size if size_at is None else size_at(step)
                    rows = rows_of(size)
                    share = 1 if rows is None else size / len(rows)
                    read = batch(step, rows)
                    arrays = to_device(read, accumulation=split_of(size).accumulation, sharding=sharding)
                    put((arrays, {unit: round(number * share) for unit, number in count(read).items()}))
                    if closed.is_set():
                        return
            except BaseException as error:  # raised in the thread that waits for the batch
                put(error)

        self._thread = threading.Thread(target=work, name="prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Fed:
        """Return the next batch; None instead of it after `PATIENCE` seconds, to handle signals and commands.

        Raises what the thread raised; if that of another process failed, ProcessFailed.
        """
        started = time.perf_counter()
        if self._item is None:
            with contextlib.suppress(queue.Empty):
                self._item = self._ready.get(timeout=PATIENCE)
        error = self._item if isinstance(self._item, BaseException) else None
        # another process may still wait for its batch
        if not agreement.agree("batch", error, ready=self._item is not None):
            return Fed(None, {}, waited=time.perf_counter() - started)
        item, self._item = self._item, None
        assert item is not None and not isinstance(item, BaseException), "all processes have a batch"
        return Fed(*item, waited=time.perf_counter() - started)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout=5)
