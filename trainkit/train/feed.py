"""Batches from host to device, a few steps ahead."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainkit.plan import BatchSplit

HostBatch = Mapping[str, np.ndarray]
DeviceBatch = dict[str, jax.Array]


class Batches(Protocol):
    def __call__(self, step: int, rows: np.ndarray | None = None, /) -> HostBatch:
        """The batch of a step, or only some rows of it, rising."""


def to_device(batch: HostBatch, *, accumulation: int, sharding: NamedSharding) -> DeviceBatch:
    """Arrays (B, …) to arrays (accumulation, B / accumulation, …) on the mesh.

    Of a mesh over several processes the arrays are this process's rows, see `own_rows`.
    """
    put = jax.device_put if sharding.is_fully_addressable else _put_own
    return {name: put(array.reshape(accumulation, -1, *array.shape[1:]), sharding) for name, array in batch.items()}


def _put_own(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_process_local_data(sharding, array)


def own_rows(split: BatchSplit, sharding: NamedSharding) -> np.ndarray | None:
    """The rows of a batch that the devices of this process take; None where they take all."""
    shape = (split.accumulation, split.global_size // split.accumulation)
    taken = np.zeros(shape, bool)
    for place in sharding.addressable_devices_indices_map(shape).values():
        taken[place] = True
    return None if taken.all() else np.flatnonzero(taken)


class Feed:
    """The batches of steps `first`, `first` + 1, … `last` - 1, made by a thread while the device computes.

    What it holds is a cache of a pure function: dropping it at any time loses nothing.
    """

    def __init__(
        self,
        batch: Batches,
        *,
        first: int,
        last: int,
        split: BatchSplit,
        sharding: NamedSharding,
        depth: int = 2,
    ) -> None:
        self._ready: queue.Queue[DeviceBatch | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()

        def work() -> None:
            try:
                rows = own_rows(split, sharding)
                for step in range(first, last):
                    self._put(to_device(batch(step, rows), accumulation=split.accumulation, sharding=sharding))
                    if self._closed.is_set():
                        return
            except BaseException as error:  # handed to the thread that waits for the batch, which raises it
                self._put(error)

        self._thread = threading.Thread(target=work, name="feed", daemon=True)
        self._thread.start()

    def next(self) -> tuple[DeviceBatch, float]:
        """The next batch, and the seconds for which the loop had to wait for it."""
        started = time.perf_counter()
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item, time.perf_counter() - started

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=5)

    def _put(self, item: DeviceBatch | BaseException) -> None:
        while not self._closed.is_set():
            try:
                return self._ready.put(item, timeout=0.2)
            except queue.Full:
                continue
