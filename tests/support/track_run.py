"""Logs of runs that nothing trained, and how what a tracker keeps is read back."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event as Record

from trainkit.events.attempts import process_started
from trainkit.events.log import EventLog

CHILD = Path(__file__).with_name("aim_child.py")
RECIPE = 'schema = 1\n[train]\nsteps = 30\n[run]\nname = "n"\n'


def run_directory(parent: Path, name: str) -> Path:
    run = parent / name
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(RECIPE)
    return run


def began(run: Path, attempt: int, *, resumed_from: int | None = None, pid: int | None = None) -> EventLog:
    """A log whose trainer is this process, or that of `pid`."""
    pid = pid or os.getpid()
    log = EventLog(run, attempt=attempt)
    who: dict[str, Any] = {"pid": pid, "process_started": process_started(pid), "host": "here"}
    facts: dict[str, Any] = {"schema": 1, "name": run.name, "recipe": "f00", "versions": {"jax": "0"}, "orders": []}
    log.write("run_started", step=resumed_from or 0, resumed_from=resumed_from, **who, **facts)
    return log


def finish(log: EventLog, step: int) -> None:
    log.write("run_finished", step=step, status="finished", exit_code=0, message="")
    log.close()


def train(log: EventLog, steps: range, *, factor: float = 1.0) -> None:
    for step in steps:
        log.write("step", step=step, metrics={"train/loss": factor / step, "throughput/mfu": 0.5})


def look(log: EventLog, step: int, *, loss: float) -> None:
    """All that happens beside a step, once."""
    bits = {"validation/held-out/loss": loss, "validation/held-out/bits_per_byte": float("nan")}
    log.write("evaluated", step=step, name="held-out", metrics=bits, seconds=0.1)
    counts = {"low": -1.0, "high": 1.0, "counts": [1, 6, 1, 0]}
    all_zero = {"low": 0.0, "high": 0.0, "counts": [8, 0]}
    log.write("distributions", step=step, values={"gradients/layers/3": counts, "gradients/bias": all_zero})
    log.write("sampled", step=step, prompt="def ", text="dé f(x):\n\treturn", seconds=0.1)
    log.write("sampled", step=step, prompt="if ", text="if x:", seconds=0.1)
    log.write("checkpoint_saved", step=step, kind="permanent", path=f"checkpoints/{step}", bytes=12, seconds=0.1)


def two_attempts(parent: Path, name: str) -> Path:
    """A run whose second attempt goes on from step 20 of 30, and ends at 25."""
    run = run_directory(parent, name)
    log = began(run, 1)
    train(log, range(1, 11))
    look(log, 10, loss=2.5)
    train(log, range(11, 31))
    look(log, 30, loss=1.5)
    log.write("log", step=30, level="info", message="it stays")
    log = began(run, 2, resumed_from=20)
    train(log, range(21, 26), factor=3.0)
    finish(log, 25)
    return run


#: What `two_attempts` leaves of a metric.
LOSSES = {step: 1.0 / step for step in range(1, 21)} | {step: 3.0 / step for step in range(21, 26)}


def read_back(repository: Path, *query: str) -> dict[str, Any]:
    """Runs of Aim by name, those that a query selects if there is one, through its SDK in a fresh process."""
    done = subprocess.run([sys.executable, CHILD, repository, *query], check=True, capture_output=True, text=True)
    return {run["name"]: run for run in json.loads(done.stdout.splitlines()[-1])}


def tensorboard_records(run: Path) -> list[Record]:
    """The one event file: records of length (8 bytes), its checksum (4), data, its checksum (4)."""
    (path,) = (run / "tensorboard").iterdir()
    data, at, records = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(Record.FromString(data[at + 12 : at + 12 + length]))
        at += 16 + length
    return records


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    found = defaultdict(list)
    for record in tensorboard_records(run):
        for value in record.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found[value.tag].append((record.step, value.simple_value))
    return dict(found)


def texts(run: Path) -> dict[str, list[tuple[int, str]]]:
    found = defaultdict(list)
    for record in tensorboard_records(run):
        for value in record.summary.value:
            if value.metadata.plugin_data.plugin_name == "text":
                found[value.tag].append((record.step, value.tensor.string_val[0].decode()))
    return dict(found)


def wandb_records(run: Path) -> Iterator[Any]:
    """The one file of the W&B run: LevelDB's log format after a header of 7 bytes.

    Blocks of 32 KiB hold pieces: a checksum (4 bytes), a length (2), a type (1: whole, 2: first, 3: middle, 4: last).
    """
    from wandb.proto.wandb_internal_pb2 import Record as WandBRecord

    (path,) = (run / "wandb").glob("offline-run-*/*.wandb")
    data, at, record = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = -at % (1 << 15)
        if 0 < left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield WandBRecord.FromString(record)
            record = b""


def history(run: Path) -> list[dict[str, Any]]:
    """The rows of a W&B run."""
    found = []
    for record in wandb_records(run):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found
