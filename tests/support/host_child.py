"""One of several hosts that train on one cache: `host_child.py CACHE-DIRECTORY PORT HOSTS NUMBER`; prints what it read.

Real processes joined by `jax.distributed`, each with two fake CPU devices.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import data_room as room
import jax

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches
from trainkit.parallel import mesh
from trainkit.plan import BatchSplit
from trainkit.train.prefetch import Prefetch

STEPS, BATCH = 6, 16


def recipe(directory: Path):
    return room.recipe(directory, directory / "text/**/*.txt", batch_size=BATCH)


def main() -> None:
    directory, port, hosts, number = Path(sys.argv[1]), *map(int, sys.argv[2:])
    jax.distributed.initialize(f"localhost:{port}", hosts, number)
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
        tokens = feed.next().batch["tokens"]
        assert tokens.shape == (2, BATCH // 2, 16), "the array is that of all hosts"
        shards.append([[s.index[1].start or 0, s.data.tolist()] for s in tokens.addressable_shards])
    feed.close()
    print(json.dumps({"asked": asked, "shards": shards}))


if __name__ == "__main__":
    main()
