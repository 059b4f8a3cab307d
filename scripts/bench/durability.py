"""What flushing to the disk and checksums cost a run: their time in the process that trains, as a share of the run.

uv run python scripts/bench/durability.py                                    # recipes/quickstart.toml in full
uv run python scripts/bench/durability.py --set train.steps=200              # less of it

`fsync` in the main thread stops training; in others, such as the one that writes checkpoints, it waits for the disk
beside it. Checksums use a core wherever they are computed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.toml"
#: Seconds by what was done, and in which thread.
SPENT: dict[str, float] = defaultdict(float)
CALLS: dict[str, int] = defaultdict(int)


def timed(name: str, function: Any) -> Any:
    """Return the function; what it takes is added to `SPENT`."""

    def call(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            where = "main thread" if threading.current_thread() is threading.main_thread() else "other threads"
            SPENT[f"{name}, {where}"] += time.perf_counter() - started
            CALLS[f"{name}, {where}"] += 1

    return call


def main() -> None:
    """Train the recipe in this process, and print what flushing and checksums took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    overrides = parser.parse_args().overrides
    os.fsync, zlib.crc32 = timed("fsync", os.fsync), timed("checksum", zlib.crc32)

    from trainkit.recipe.toml.load import load
    from trainkit.run.attempt import attempt
    from trainkit.run.start import Start
    from trainkit.rundir.directory import create

    with tempfile.TemporaryDirectory() as place:
        settings = [f'run.directory="{place}"', f'data.cache="{place}/cache"', "track.aim=false", *overrides]
        directory = create(load(RECIPE, settings))
        started = time.perf_counter()
        attempt(directory, Start())
        seconds = time.perf_counter() - started
    print(f"the run: {seconds:.1f} s")
    for name, spent in sorted(SPENT.items()):
        print(f"{name}: {spent:.3f} s in {CALLS[name]:,} calls, {spent / seconds:.2%} of the run")
    print(f"all together: {sum(SPENT.values()) / seconds:.2%} of the run")


if __name__ == "__main__":
    main()
