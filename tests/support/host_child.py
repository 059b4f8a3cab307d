"""One of several hosts that train on one cache: `host_child.py CACHE-DIRECTORY PORT COUNT NUMBER`.

Prints what it read, and what it found in an evaluation.

Real processes joined by `jax.distributed`, each with two fake CPU devices.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import data_room as room
import jax
import jax.numpy as jnp
import numpy as np

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.evaluation.evaluator import Evaluator
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.parallel import hosts, mesh
from trainkit.plan import BatchSplit
from trainkit.tasks import Loss, Task
from trainkit.tasks.statistics import Ratio
from trainkit.train.prefetch import Prefetch
from trainkit.train.state import State, initial_live

STEPS, BATCH = 6, 16


def recipe(directory: Path):
    return room.recipe(directory, directory / "text/**/*.txt", batch_size=BATCH)


class Rows:
    """Two batches of eight rows, 0.0 to 15.0."""

    targets, bytes = 16, 0

    def ready(self, seconds: float) -> bool:
        return True

    def __len__(self) -> int:
        return 2

    def batch(self, index: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(8, dtype=np.float32) + 8 * index}


class CountRows(Task):
    metrics = {"rows": Ratio.zero()}  # noqa: RUF012

    def loss(self, model, batch, *, key):
        rows = jnp.float32(batch["x"].size)
        return Loss(batch["x"].sum(), rows, {"rows": Ratio(rows, rows)})

    def report(self, *, loss, metrics, targets, bytes):
        return {"loss": loss, "rows": float(metrics["rows"].sum)}


class UnreadableRows(Rows):
    """Rows that the second host cannot read."""

    def batch(self, index: int) -> dict[str, np.ndarray]:
        if not hosts.is_first():
            raise OSError("this set cannot be read")
        return super().batch(index)


def evaluation(directory: Path, number: int) -> tuple[dict[str, float], str]:
    """Return the metrics of an evaluation in which all hosts take part, and the error of one that one host cannot
    read."""
    run = directory / f"host-{number}"
    run.mkdir()
    log = EventLog(run, attempt=1)
    evaluator = Evaluator(
        {"rows": Rows(), "unreadable": UnreadableRows()},
        batch_size=8,
        task=CountRows(),
        compute=np.dtype(np.float32),
        mesh=mesh.make_mesh(data=len(jax.devices()), fsdp=1),
        log=log,
        interrupted=lambda: False,
    )
    try:
        evaluator(State(None, None, (), jnp.int32(3), jax.random.key(0), initial_live()), 3)
    except hosts.ProcessFailed as failed:
        error = failed.problem
    log.close()
    (found,) = (event["metrics"] for event in read(run) if event["type"] == "evaluated")
    return found, error


def main() -> None:
    directory, port, count, number = Path(sys.argv[1]), *map(int, sys.argv[2:])
    os.environ |= {hosts.ADDRESS: f"localhost:{port}", hosts.COUNT: str(count), hosts.NUMBER: str(number)}
    hosts.join()
    room.small_units()
    found = caches.find(recipe(directory))
    assert found is not None
    data = TrainSet(found, recipe(directory))
    asked: list[list[int]] = []

    def batch(step, rows=None):
        asked.append(rows.tolist())
        return data.batch(step, rows)

    devices = len(jax.devices())
    split = BatchSplit(global_size=BATCH, micro=BATCH // devices // 2, accumulation=2, replicas=devices)
    sharding = mesh.batch_sharding(mesh.make_mesh(data=devices, fsdp=1))
    feed = Prefetch(batch, count=lambda batch: {}, first=0, last=STEPS, split=split, sharding=sharding)
    shards = []
    for _ in range(STEPS):
        while (arrays := feed.next().batch) is None:
            pass
        tokens = arrays["tokens"]
        assert tokens.shape == (2, BATCH // 2, 16), "the array is that of all hosts"
        shards.append([[s.index[1].start or 0, s.data.tolist()] for s in tokens.addressable_shards])
    feed.close()
    evaluated, error = evaluation(directory, number)
    print(json.dumps({"asked": asked, "shards": shards, "evaluated": evaluated, "error": error}))


if __name__ == "__main__":
    main()
