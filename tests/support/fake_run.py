"""A plausible run without a trainer; `python tests/support/fake_run.py DIRECTORY [STEPS] [SECONDS A STEP]`."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainkit.checkpoint import manifest as checkpoint_manifest
from trainkit.checkpoint.manifest import FORMAT, Leaf, Manifest
from trainkit.events.attempts import process_started
from trainkit.events.log import EventLog
from trainkit.events.reducer import reduce
from trainkit.events.schema import SCHEMA, Event
from trainkit.events.tail import NAME
from trainkit.events.view import View

#: Text that would do something to a terminal, to markup or to a file if it were not made harmless.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e[bold red]boo[/]\r\x7f\ud800 end"

TOKENS = 4096
SAMPLE = "def main(argv=None):\n    parser = argparse.ArgumentParser()\n    return parser.parse_args(argv)\n"
PLAN = {
    "steps": 600, "tokens_per_step": TOKENS, "parameters": 3_200_000, "sequence_length": 256,
    "batch": {"global_size": 16, "micro": 8, "accumulation": 2, "replicas": 1},
    "devices": {"count": 1, "platform": "cpu", "kind": "cpu", "memory_bytes": 16 << 30}, "compute": "float32",
}  # fmt: skip


def started(name: str = "quickstart", *, resumed_from: int | None = None) -> dict[str, Any]:
    """The fields of a `run_started` of this process."""
    return {
        "schema": SCHEMA, "name": name, "pid": os.getpid(), "process_started": process_started(os.getpid()),
        "host": socket.gethostname(), "recipe": "abc", "resumed_from": resumed_from, "versions": {"jax": "0.10.2"},
        "orders": [],
    }  # fmt: skip


def training(steps: int, *, first: int = 1, total: int | None = None) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(kind, step, fields) of steps `first` to `steps`: a pure function of the step, as a real run is."""
    total = total or steps
    for step in range(first, steps + 1):
        noise = random.Random(step)
        loss = 1.9 + 6.4 * math.exp(-step / (0.1 * total)) + noise.gauss(0, 0.06)
        warm, seconds = min(1.0, step / (0.05 * total)), 0.36 + noise.random() * 0.03
        yield "step", step, {"metrics": {
            "train/loss": loss,
            "optimizer/learning_rate": 4e-3 * warm * (0.55 + 0.45 * math.cos(math.pi * step / total)),
            "gradients/norm": 0.4 + 3 * math.exp(-step / (0.05 * total)) + abs(noise.gauss(0, 0.1)),
            "time/step": seconds, "time/data_wait": 0.0002, "throughput/tokens_per_second": TOKENS / seconds,
            "host/cpu": 1.9, "memory/host": 1.2e9 + step * 1e4, "memory/device/0": 3.1e9,
        }}  # fmt: skip
        if step % max(1, total // 12) == 0:
            held_out = 1.98 + 6.3 * math.exp(-step / (0.1 * total))
            metrics = {"loss": held_out, "perplexity": math.exp(held_out), "bits_per_byte": held_out / 2.1}
            named = {f"validation/held-out/{metric}": value for metric, value in metrics.items()}
            yield "evaluated", step, {"name": "held-out", "metrics": named, "seconds": 2.1}
        if step % max(1, total // 6) == 0:
            yield "sampled", step, {"prompt": "def main(", "text": SAMPLE, "seconds": 0.8}
            yield "checkpoint_started", step, {"kind": "rolling"}
            path = f"checkpoints/{step}"
            yield "checkpoint_saved", step, {"kind": "rolling", "path": path, "bytes": 38_200_000, "seconds": 0.3}


def events(steps: int, *, attempt: int = 1, resumed_from: int | None = None, total: int | None = None) -> list[Event]:
    """One attempt's events as a reader would get them, on a clock of its own."""
    told: list[tuple[str, int, dict[str, Any]]] = [
        ("run_started", 0, started(resumed_from=resumed_from)),
        ("planned", 0, {"total_steps": total or steps, "plan": PLAN, "devices": ["cpu"]}),
        *training(steps, first=(resumed_from or 0) + 1, total=total),
    ]
    return [
        {"type": kind, "t": 1.7e9 + 10_000 * attempt + step * 0.37, "step": step, "attempt": attempt, **fields}
        for kind, step, fields in told
    ]


def write(directory: Path, all_events: list[Event]) -> Path:
    """The events as a log in `directory`, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / NAME).write_text("".join(json.dumps(event) + "\n" for event in all_events))
    return directory


def folded(events: Iterable[Event]) -> View:
    view = View()
    for event in events:
        reduce(view, event)
    return view


def manifest(step: int, **changes: Any) -> Manifest:
    facts: dict[str, Any] = {
        "format": FORMAT, "step": step, "kind": "rolling", "created": 1.7e9, "attempt": 1, "recipe": "3b789e",
        "data": "ac1b", "aim_run": None, "metrics": {"validation/held-out/loss": 2.5}, "versions": {"jax": "0.10.2"},
        "devices": ["cpu", "cpu"], "mesh": {"data": 2, "fsdp": 1}, "bytes": 1_668_880,
        "leaves": {"params.x": Leaf(shape=(2,), dtype="float32")},
    }  # fmt: skip
    return Manifest(**{**facts, **changes})


def saved(run: Path, step: int, **changes: Any) -> Path:
    directory = run / "checkpoints" / str(step)
    directory.mkdir(parents=True)
    checkpoint_manifest.write(directory, manifest(step, **changes))
    return directory


def live(directory: Path, *, steps: int, seconds: float) -> None:
    """Write a run with `seconds` for each step, and obey commands as a trainer does."""
    from trainkit.events.control import Server

    directory.mkdir(parents=True, exist_ok=True)
    log, server = EventLog(directory, attempt=1), Server(directory)
    log.write("run_started", step=0, **started(directory.name))
    for share in (0.2, 0.6, 1.0):
        done = share == 1.0
        size = {"documents": int(4000 * share), "bytes": int(1e7 * share), "tokens": int(3e6 * share)}
        log.write("cache_progress", step=0, what="train", total_bytes=10_000_000, done=done, **size)
        time.sleep(min(1.0, 3 * seconds))
    log.write("planned", step=0, total_steps=steps, plan={**PLAN, "steps": steps}, devices=["cpu"])
    time.sleep(min(2.0, 5 * seconds))
    log.write("compiled", step=0, what="train step", seconds=2.0)
    status, step = "finished", 0
    for kind, step, fields in training(steps):
        log.write(kind, step=step, **fields)
        if kind != "step":
            continue
        time.sleep(seconds)
        commands, paused = server.take(), False
        while commands or paused:
            for pending in commands:
                told = f"{pending.command.name} at step {step}"
                log.write("control", step=step, detail=told, total_steps=None, **pending.command.fields())
                pending.reply(True, told)
                paused = pending.command.name == "pause" or (
                    paused and pending.command.name not in ("continue", "stop")
                )
                status = "stopped" if pending.command.name == "stop" else status
            commands = server.wait(0.2) if paused else []
        if status == "stopped":
            break
    log.write("run_finished", step=step, status=status, exit_code=0 if status == "finished" else 75, message="")
    server.close()
    log.close()


if __name__ == "__main__":
    run, *rest = sys.argv[1:]
    live(Path(run), steps=int(rest[0]) if rest else 600, seconds=float(rest[1]) if rest[1:] else 0.0)
