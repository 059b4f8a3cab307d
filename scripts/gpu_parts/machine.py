"""What the log says of the machine, a profile, and what happens when a step has no memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_parts.correctness import LARGE, RECIPE, TINY, write_text
from gpu_parts.place import Place, Row

STEPS, SAVED = 40, 1000
PROFILED = "10:12"
#: Metrics that NVML gives, of the first device.
NVML = ("power/device/0", "temperature/device/0", "utilization/device/0", "memory/device/0", "memory/device_peak/0")
#: A program that takes all of a GPU's memory but so many bytes, says so, and waits for its input to end.
HOG = """
import sys, jax, jax.numpy as jnp
limit = jax.devices()[0].memory_stats()["bytes_limit"]
block = jnp.zeros(limit - int(sys.argv[1]), jnp.uint8).block_until_ready()
print("taken", flush=True)
sys.stdin.read()
"""
#: What the run that is short of memory may have of the GPU.
LEFT_BYTES = 6 << 30


def watch_machine(place: Place) -> Iterator[Row]:
    """Yield the metrics of NVML, the top of a profile, and what a run does that is short of memory."""
    write_text(place.directory)
    yield from watch_a_run(place)
    yield from run_out_of_memory(place)


def watch_a_run(place: Place) -> Iterator[Row]:
    """Yield what the log of a run says of the GPU, and the first lines of its profile."""
    recipe = write_recipe(place, "watched", **(TINY if place.small else LARGE), steps=STEPS)
    # readings come once a second, so that a short run has few of them
    more = [] if place.small else ["--set", "train.steps=400"]
    done = place.trainkit("run", str(recipe), "--plain", "--name", "watched", "--profile", PROFILED, *more)
    if done.code != 0:
        yield Row("a run with a profile", done.last_line, "exit code 0", False)
        return
    run = place.directory / "runs" / "watched"
    events = events_of(run)
    steps = [event["metrics"] for event in events if event["type"] == "step"]
    for name in NVML:
        values = [metrics[name] for metrics in steps if name in metrics]
        found = f"{min(values):,.4g} to {max(values):,.4g} in {len(values)} readings" if values else "not in the log"
        yield Row(name, found, "in the log", None if place.small else bool(values))
    for message in (event["message"] for event in events if event["type"] == "log" and "XLA" in event["message"]):
        yield Row("the log", message)
    for name in ("time/data_wait", "time/dispatch", "time/device"):
        shares = sorted(one[name] / one["time/step"] for one in steps if name in one and "time/step" in one)
        yield Row(f"{name} / time/step", f"{shares[len(shares) // 2]:.2%}, the median" if shares else "not in the log")
    summary = next(run.glob("profile/*/summary.txt"), None)
    yield Row("a profile", "written" if summary else "missing", "written", summary is not None)
    for line in (summary.read_text("utf-8").splitlines() if summary else [])[:20]:
        if line.strip():
            yield Row("profile", " ".join(line.split()))


def run_out_of_memory(place: Place) -> Iterator[Row]:
    """Yield what a run does whose plan fits and whose GPU another process has filled meanwhile."""
    large = {**LARGE, "layers": 16, "hidden": 1024, "heads": 16}
    recipe = write_recipe(place, "short", **(TINY if place.small else large), steps=12)
    # the plan believes in all of the card, but memory is taken only when it is needed
    alone = {"XLA_CLIENT_MEM_FRACTION": "0.95", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with hog(place) as problem:
        if problem:
            yield Row("a process that fills the GPU", problem, "fills it", False)
            return
        sizes = ("--set", "train.batch_size=64", "--set", "train.micro_batch_size=64", "--set", 'train.remat="none"')
        done = place.trainkit("run", str(recipe), "--plain", "--name", "short", *sizes, **alone)
    alerts = [e["message"] for e in events_of(place.directory / "runs" / "short") if e["type"] == "alert"]
    out = [message for message in alerts if message.startswith("out of memory")]
    found = f"exit code {done.code}; {'; '.join(out) or 'no alert of memory'}"
    yield Row(
        "a step without memory", found, "an alert, then the end", None if place.small else done.code == 0 and bool(out)
    )


@contextlib.contextmanager
def hog(place: Place) -> Iterator[str]:
    """Fill the GPU while the block runs, and yield what went wrong. A small form has no GPU to fill."""
    if place.small:
        yield ""
        return
    command = [sys.executable, "-c", HOG, str(LEFT_BYTES)]
    pipe = subprocess.PIPE
    environment = os.environ | {"XLA_CLIENT_MEM_FRACTION": "0.95"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        taken = process.stdout.readline().strip() == "taken"
        yield "" if taken else (process.stderr.read().strip() or "no answer").splitlines()[-1]
        process.stdin.close()


def write_recipe(place: Place, name: str, **sizes: int) -> Path:
    """Write a recipe into the directory of the part, and return its path."""
    recipe = place.directory / f"{name}.toml"
    recipe.write_text(RECIPE.format(**sizes, saved=SAVED, deterministic="false"), "utf-8")
    return recipe


def events_of(run: Path) -> list[Any]:
    """Return the events of a run; none if it never began."""
    from trainkit.events.tail import read

    return list(read(run)) if (run / "events.jsonl").exists() else []
