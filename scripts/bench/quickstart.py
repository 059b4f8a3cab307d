"""Bits per byte of the quickstart recipe, and of a bare script after the same time; both from process start.

uv run python scripts/bench/quickstart.py
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

from paired import RECIPE, TRAINKIT, begin

BARE = Path(__file__).with_name("bare.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="for the bare script")
    arguments = parser.parse_args()
    begin()
    with tempfile.TemporaryDirectory(prefix="trainkit-bench-") as directory:
        quickstart(Path(directory), arguments.seconds)


def quickstart(directory: Path, seconds: float) -> None:
    """The bare script for `--seconds`, then the recipe from an empty cache to its end; both from process start."""
    from trainkit.events.tail import read

    environment = os.environ | {"BENCH_STARTED": repr(time.time())}
    command = [sys.executable, str(BARE), "--seconds", str(seconds)]
    bare = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    print(f"bare script: {seconds:.0f} s, {json.dumps(bare)}", flush=True)

    began = time.time()
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(directory / "compiled")}
    command = [*TRAINKIT, "run", str(RECIPE), "--plain", "--set", f"run.directory={directory}"]
    command += ["--set", f"data.cache={directory / 'cache'}", "--set", f"track.repository={directory}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    whole = time.time() - began
    events = read(directory / "quickstart")
    steps = [e for e in events if e["type"] == "step"]
    final = [e for e in events if e["type"] == "evaluated"][-1]
    rates = [e["metrics"]["throughput/tokens_per_second"] for e in steps[1:]]
    report = {
        "bits_per_byte": final["metrics"]["validation/held-out/bits_per_byte"],
        "loss": final["metrics"]["validation/held-out/loss"],
        "steps": len(steps),
        "tokens_per_second": statistics.median(rates),
        "first_step_seconds": steps[0]["t"] - began,
        "last_step_seconds": steps[-1]["t"] - began,
        "process_seconds": whole,
    }
    print(f"trainkit run recipes/quickstart.toml: {whole:.0f} s, {json.dumps(report)}", flush=True)


if __name__ == "__main__":
    main()
