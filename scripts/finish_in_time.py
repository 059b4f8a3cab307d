"""Whether a run with `train.until` ends in time by the real clock, while other work comes and goes.

    uv run python scripts/finish_in_time.py [--seconds 120]

It trains a small model on the CPU until so many seconds from now; meanwhile a second process computes for a tenth of
that time, rests for a tenth, and so on. It prints when the run took its last step and when it ended, and fails if the
run ended more than 2 % of the time and a second away from it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from trainkit.events.tail import read

RECIPE = """
schema = 1
[run]
name = "timed"
[model]
type = "gpt2"
layers = 2
hidden = 64
heads = 4
[tokenizer]
train = {{ vocab_size = 300 }}
[data]
sequence_length = 64
[[data.train]]
path = "text.txt"
[train]
steps = 1000000
until = "{until}"
batch_size = 8
[optimizer]
learning_rate = 1e-3
[schedule]
type = "wsd"
warmup = 10
[track]
aim = false
"""


def disturb(seconds: float) -> None:
    """Compute for so many seconds, rest as long, and so on."""
    while True:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(10_000))
        time.sleep(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=120, help="from now to the end of the run")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        directory, chance = Path(name), random.Random(0)
        words = ["".join(chance.choices("abcdefghij", k=chance.randrange(2, 7))) for _ in range(200)]
        (directory / "text.txt").write_text(" ".join(chance.choices(words, k=50_000)))
        end = datetime.now().replace(microsecond=0) + timedelta(seconds=seconds)
        (directory / "timed.toml").write_text(RECIPE.format(until=end.strftime("%Y-%m-%d %H:%M:%S")))
        load = multiprocessing.Process(target=disturb, args=(seconds / 10,), daemon=True)
        load.start()
        command = [sys.executable, "-m", "trainkit", "run", "timed.toml", "--plain"]
        done = subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=False)
        load.kill()
        events = list(read(directory / "runs" / "timed"))
    steps = [event for event in events if event["type"] == "step"]
    moved = sum(event["type"] == "control" and event["command"] == "finish" for event in events)
    speeds = [later["t"] - earlier["t"] for earlier, later in zip(steps[20:], steps[120:], strict=False)]
    away = [event["t"] - end.timestamp() for event in (steps[-1], events[-1])]
    allowed = 0.02 * seconds + 1
    print(
        f"{len(steps):,} steps, of which 100 took {min(speeds):.2f} to {max(speeds):.2f} s; the end moved {moved} times"
    )
    print(f"wanted after {seconds} s: the last step {away[0]:+.2f} s, the end of the run {away[1]:+.2f} s")
    print(f"allowed: {allowed:.1f} s")
    return int(done.returncode != 0 or abs(away[1]) > allowed)


if __name__ == "__main__":
    sys.exit(main())
