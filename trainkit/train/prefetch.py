"""Batches from host to device, a few steps ahead."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainkit.plan import BatchSplit

#: Seconds for which a batch is waited for at a time.
PATIENCE = 0.2

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


class Fed(NamedTuple):
    """What the loop takes for a step."""

    batch: DeviceBatch | None
    size: Mapping[str, int]
    """`tokens` and `samples` of the whole batch; where this process has only some of its rows, as if all were alike."""
    waited: float
    """Seconds for which the loop had to wait for it."""


class Prefetch:
    """The batches of steps `first`, `first` + 1, … `last` - 1, made by a thread while the device computes.

    What it holds is a cache of a pure function: dropping it at any time loses nothing.
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
        depth: int = 2,
    ) -> None:
        """`count` is that of the task."""
        ready = self._ready = queue.Queue[tuple[DeviceBatch, Mapping[str, int]] | BaseException](depth)
        closed = self._closed = threading.Event()

        def put(item: tuple[DeviceBatch, Mapping[str, int]] | BaseException) -> None:
            while not closed.is_set():
                try:
                    return ready.put(item, timeout=0.2)
                except queue.Full:
                    continue

        def work() -> None:
            try:
                rows = own_rows(split, sharding)
                share = 1 if rows is None else split.global_size / len(rows)
                for step in range(first, last):
                    read = batch(step, rows)
                    there = to_device(read, accumulation=split.accumulation, sharding=sharding)
                    put((there, {unit: round(number * share) for unit, number in count(read).items()}))
                    if closed.is_set():
                        return
            except BaseException as error:  # handed to the thread that waits for the batch, which raises it
                put(error)

        self._thread = threading.Thread(target=work, name="feed", daemon=True)
        self._thread.start()

    def next(self) -> Fed:
        """The next batch, and the seconds for which the loop had to wait for it.

        None where it is not there after a while, so that who waits can listen to signals and commands.
        """
        started = time.perf_counter()
        try:
            item = self._ready.get(timeout=PATIENCE)
        except queue.Empty:
            return Fed(None, {}, waited=time.perf_counter() - started)
        if isinstance(item, BaseException):
            raise item
        return Fed(*item, waited=time.perf_counter() - started)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=5)
