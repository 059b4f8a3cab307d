"""Whether a change made trainkit slower: two checkouts, measured in turns on one machine, and the ratios between them.

uv run python scripts/bench/compare.py --before REVISION             # all five; "after" is this checkout
uv run python scripts/bench/compare.py --before REVISION loop step --rounds 9
uv run python scripts/bench/compare.py --before DIRECTORY            # a checkout that is there already

- start: `--help`, `check`, and a run from its start to the event of its first step, its programs compiled before
- loop: milliseconds of a step of a model so small that the loop is most of it
- data: CPU seconds of `cache-data` on Python source
- step: milliseconds of a step of the quickstart's model
- dashboard: CPU seconds to show all of a run of many steps once

Both checkouts run under this Python, as processes with the checkout in front on the path. The first of a round changes.
A ratio is after / before: above 1 the change is slower, and worse than the noise where the whole range is above 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paired import ROOT, begin, report

RECIPE = """
schema = 1
[run]
name = "compared"
[model]
type = "gpt2"
layers = {layers}
hidden = {hidden}
heads = 4
[tokenizer]
train = {{ vocab_size = 1024 }}
[data]
sequence_length = {length}
[[data.train]]
path = "text.jsonl"
[train]
steps = {steps}
batch_size = 8
[optimizer]
learning_rate = 1e-3
[checkpoint]
every_minutes = 1000
[track]
aim = false
"""
SMALL = {"layers": 1, "hidden": 32, "length": 32, "steps": 600}
USUAL = {"layers": 4, "hidden": 128, "length": 256, "steps": 40}
#: Steps of the run that the dashboard shows, and its metrics.
SHOWN, METRICS = 20_000, 50


class Checkout:
    """One of the two: its code, and a directory of its own for runs and caches."""

    def __init__(self, code: Path, place: Path, megabytes: float) -> None:
        self.place = place
        self._environment = os.environ | {
            "PYTHONPATH": str(code),
            "XDG_CACHE_HOME": str(place / "cache-home"),
            "XDG_STATE_HOME": str(place / "state"),
        }
        place.mkdir()
        _write_text(place / "text.jsonl", megabytes)
        for name, sizes in (("small", SMALL), ("usual", USUAL)):
            (place / f"{name}.toml").write_text(RECIPE.format(**sizes))
        _write_run(place / "runs" / "shown")

    def seconds(self, *arguments: str) -> tuple[float, float]:
        """Run `trainkit ARGUMENTS`; the seconds of the clock and of processors that it took."""
        before, began = os.times(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "trainkit", *arguments],
            cwd=self.place, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        took, after = time.perf_counter() - began, os.times()
        if done.returncode:
            sys.exit(f"trainkit {' '.join(arguments)} ended with {done.returncode} in {self.place}:\n{done.stderr}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return took, cpu

    def train(self, recipe: str, *overrides: str) -> tuple[float, list[float]]:
        """Train; the seconds from the start to the first step's event, and those of each step by the log."""
        name, began = f"run-{time.monotonic_ns()}", time.time()
        changed = [word for override in overrides for word in ("--set", override)]
        self.seconds("run", f"{recipe}.toml", "--plain", "--name", name, *changed)
        lines = (self.place / "runs" / name / "events.jsonl").read_text().splitlines()
        steps = [event for event in map(json.loads, lines) if event["type"] == "step"]
        return steps[0]["t"] - began, [e["metrics"]["time/step"] for e in steps if "time/step" in e["metrics"]]


def start(checkout: Checkout) -> dict[str, float]:
    first, _ = checkout.train("usual", "train.steps=2")
    commands = {"--help": ["--help"], "check": ["check", "usual.toml"]}
    return {**{name: checkout.seconds(*words)[0] for name, words in commands.items()}, "first step": first}


def loop(checkout: Checkout) -> dict[str, float]:
    return {"small step": statistics.median(checkout.train("small")[1])}


def data(checkout: Checkout) -> dict[str, float]:
    took, cpu = checkout.seconds("cache-data", "usual.toml", "--rebuild")
    return {"cache-data": took, "cache-data, CPU": cpu}


def step(checkout: Checkout) -> dict[str, float]:
    return {"step": statistics.median(checkout.train("usual")[1])}


def dashboard(checkout: Checkout) -> dict[str, float]:
    took, cpu = checkout.seconds("watch", "shown", "--once")
    return {"watch --once": took, "watch --once, CPU": cpu}


BENCHMARKS: dict[str, Callable[[Checkout], dict[str, float]]] = {
    "start": start,
    "loop": loop,
    "data": data,
    "step": step,
    "dashboard": dashboard,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--before", required=True, metavar="REVISION", help="or the directory of a checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=20.0, help="of text to tokenise")
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory, _checkout(arguments.before) as before:
        both = [
            Checkout(code, Path(directory) / name, arguments.megabytes)
            for name, code in (("before", before), ("after", ROOT))
        ]
        for what in arguments.what or BENCHMARKS:
            compare(what, both, arguments.rounds)


def compare(what: str, both: list[Checkout], rounds: int) -> None:
    """Measure both in turns, after once that is not counted, and print the ratio of each number."""
    for checkout in both:
        BENCHMARKS[what](checkout)
    found: list[list[dict[str, float]]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(BENCHMARKS[what](both[which]))
    for name in found[0][0]:
        before, after = ([sample[name] for sample in samples] for samples in found)
        ratios = [a / b for a, b in zip(after, before, strict=True)]
        absolute = f"{statistics.median(before) * 1e3:.1f} ms before, {statistics.median(after) * 1e3:.1f} ms after"
        report(f"{what}: {name}, after / before", ratios, absolute)


@contextlib.contextmanager
def _checkout(before: str) -> Iterator[Path]:
    """Yield the directory of the earlier code; of a revision it is a worktree, which is removed in the end."""
    if Path(before).is_dir():
        yield Path(before).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="trainkit-before-") as directory:
        code, git = Path(directory) / "code", ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(code), before], check=True)
        try:
            yield code
        finally:
            subprocess.run([*git, "remove", "--force", str(code)], check=True)


def _write_text(path: Path, megabytes: float) -> None:
    """Write JSON lines of the standard library's source, as often as it takes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    written = 0
    with path.open("w") as out:
        while written < megabytes * 1e6:
            for source in sources:
                text = f"# {written}\n{source.read_text('utf-8', 'replace')}"
                written += out.write(json.dumps({"text": text}) + "\n")


def _write_run(run: Path) -> None:
    """Write the log of a run that has ended."""
    run.mkdir(parents=True)
    first = {
        "schema": 1, "name": run.name, "pid": 1, "process_started": None, "host": "elsewhere", "recipe": "",
        "resumed_from": None, "versions": {}, "orders": [],
    }  # fmt: skip
    end = {"status": "finished", "exit_code": 0, "message": ""}
    with (run / "events.jsonl").open("w") as out:

        def write(kind: str, step: int, **fields: object) -> None:
            event = {"type": kind, "t": 1.7e9 + step / 3, "step": step, "attempt": 1, **fields}
            out.write(json.dumps(event) + "\n")

        write("run_started", 0, **first)
        write("planned", 0, total_steps=SHOWN, plan={}, devices=["cpu"])
        for step in range(1, SHOWN + 1):
            metrics = {f"train/metric-{number}": number + 1 / step for number in range(METRICS - 1)}
            write("step", step, metrics={"train/loss": 2 + 5 / step, **metrics})
        write("run_finished", SHOWN, **end)


if __name__ == "__main__":
    main()
