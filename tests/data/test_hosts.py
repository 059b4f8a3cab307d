"""Several hosts on one shared cache read only their own rows, and together the batch of one host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import data_room as room
import host_child
import numpy as np
from places import LIMIT
from ports import free_port

from trainkit.data.batches.dataset import TrainSet
from trainkit.data.cache import build as caches


def test_two_hosts_read_their_own_rows_of_one_cache_and_together_every_batch_and_evaluate_each_row_once(
    tmp_path: Path, monkeypatch
) -> None:
    room.small_units(monkeypatch)
    room.write_texts(tmp_path / "text", 60)
    recipe = host_child.recipe(tmp_path)
    data = TrainSet(caches.build(recipe), recipe)
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, host_child.__file__, str(tmp_path), str(free_port()), "2"]
    children = [
        subprocess.Popen(
            [*command, str(number)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    ended = [child.communicate(timeout=LIMIT) for child in children]
    assert [child.returncode for child in children] == [0, 0], ended
    told = [json.loads(out.splitlines()[-1]) for out, _ in ended]
    for host in told:
        assert host["evaluated"] == {"validation/rows/loss": 7.5, "validation/rows/rows": 16}, "each row counts once"
        assert "process 1 on " in host["error"] and "OSError: this set cannot be read" in host["error"]
    first, second = (host["asked"][0] for host in told)
    assert len(first) == len(second) == 8 and sorted(first + second) == list(range(16))
    for step in range(host_child.STEPS):
        whole = data.batch(step)["tokens"].reshape(2, 8, 16)
        found = np.full_like(whole, 60_000)
        for host in told:
            for start, rows in host["shards"][step]:
                found[:, start : start + 2] = rows
        np.testing.assert_array_equal(found, whole)
