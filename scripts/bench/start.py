"""What it takes to start: --help and check over bare imports, and the first step over that of a bare script, paired.

uv run python scripts/bench/start.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paired import RECIPE, ROOT, TRAINKIT, begin, report

BARE = Path(__file__).with_name("bare.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
        start(Path(directory), arguments.rounds)


def start(directory: Path, rounds: int) -> None:
    typer = (
        "import typer; app = typer.Typer(rich_markup_mode=None, add_completion=False);"
        " app.command()(lambda: None); app()"
    )
    _pair("trainkit --help", [*TRAINKIT, "--help"], "bare typer --help", [sys.executable, "-c", typer, "--help"], 15)
    # both packages import lazily: the second line is what a program that uses pydantic cannot do without
    for imports in ("import pydantic, typer", "import typer; from pydantic import BaseModel"):
        _pair("trainkit check", [*TRAINKIT, "check", str(RECIPE)], imports, [sys.executable, "-c", imports], 15)
    caches = {"warm": directory / "compiled-trainkit", "bare": directory / "compiled-bare"}
    _first_step(directory, caches["warm"])
    _bare_first_step(caches["bare"])
    for name, trainkit_cache, bare_cache in (
        ("first step, compile cache filled", caches["warm"], caches["bare"]),
        ("first step, compile cache empty", None, None),
    ):
        ours, bare = [], []
        for i in range(rounds):
            ours.append(_first_step(directory, trainkit_cache or directory / f"a{i}"))
            bare.append(_bare_first_step(bare_cache))
        ratios = [a / b for a, b in zip(ours, bare, strict=True)]
        report(f"{name}: trainkit / bare script", ratios, f"{statistics.median(ours):.2f} s")


def _first_step(directory: Path, compiled: Path) -> float:
    """Seconds from the start of `trainkit run` to the event of step 1, the cache of tokens being there."""
    from trainkit.events.tail import read

    name = f"start-{time.monotonic_ns()}"
    command = [*TRAINKIT, "run", str(RECIPE), "--plain", "--name", name]
    for override in (
        f"run.directory={directory}",
        f"data.cache={ROOT / 'cache'}",
        "train.steps=2",
        "track.aim=false",
        "data.held_out=0.03",
        "evaluate.max_batches=1",
        "sample.max_tokens=1",
    ):
        command += ["--set", override]
    began = time.time()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return next(e["t"] for e in read(directory / name) if e["type"] == "step") - began


def _bare_first_step(compiled: Path | None) -> float:
    command = [sys.executable, str(BARE), "--first-step", *(["--compile-cache", str(compiled)] if compiled else [])]
    environment = os.environ | {"BENCH_STARTED": repr(time.time())}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)["first_step_seconds"]


def _pair(name: str, command: list[str], other: str, base: list[str], rounds: int) -> None:
    def seconds(command: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    seconds(command), seconds(base)
    pairs = [(seconds(command), seconds(base)) for _ in range(rounds)]
    report(f"{name} / {other}", [a / b for a, b in pairs], f"{statistics.median(a for a, _ in pairs):.3f} s")


if __name__ == "__main__":
    main()
