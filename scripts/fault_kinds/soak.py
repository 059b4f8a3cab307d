"""A soak: one run of many thousand small steps with saves, evaluations, samples, pauses and viewers, whose memory, file
descriptors and threads must not grow.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fault_kinds.workplace import NAME, RECIPE, STEPS, Outcome, Workplace, write_inputs
from trainkit.errors import TrainkitError
from trainkit.events.commands import Name, send
from trainkit.events.tail import last_step

#: Steps that one outcome is about, and the parts before the one that the others are compared with: meanwhile threads
#: are started, and the index of the log is opened.
PART, WARM_UP = 1000, 9
#: How much more memory a later part may take, and how many more descriptors and threads.
GROWTH, MORE = 1.05, 2
#: Seconds between two things that a person does, and what they are.
PAUSE = 0.5
DEEDS: tuple[Name | str, ...] = ("save", "evaluate", "sample", "pause", "watch", "runs")


class Taken(NamedTuple):
    """What a trainer holds at a moment."""

    bytes: float
    descriptors: float
    threads: float

    def is_more_than(self, before: Taken) -> bool:
        """Return whether this is more than chance explains."""
        more = self.bytes > GROWTH * before.bytes
        return more or self.descriptors > before.descriptors + MORE or self.threads > before.threads + MORE

    def describe(self) -> str:
        """Return the numbers in words."""
        return f"{self.bytes / 1e6:.1f} MB, {self.descriptors:g} descriptors, {self.threads:g} threads"


def soak(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Train so many parts after the first ones, and yield for each whether the trainer holds more than in those."""
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        place = Path(directory) / "work"
        write_inputs(place)
        (place / "tiny.toml").write_text(_recipe((WARM_UP + 1 + times) * PART))
        run, first = place / "runs" / NAME, None
        with _trainer(place) as trainer:
            for part, taken in _parts(trainer, run, chance, WARM_UP + 1 + times):
                if part < WARM_UP:
                    continue
                if first is None:
                    first = taken
                    continue
                what = f"steps {part * PART} to {(part + 1) * PART}: {taken.describe()}; at first {first.describe()}"
                yield Outcome("wrong" if taken.is_more_than(first) else "exact", what)
            if trainer.wait(600):
                yield Outcome("lost", f"the trainer ended with exit code {trainer.returncode}")


def _recipe(steps: int) -> str:
    """Return the small recipe with more and smaller steps, and with evaluations that hardly take time."""
    recipe = RECIPE.replace(f"steps = {STEPS}", f"steps = {steps}").replace("keep_every = 6\n", "")
    recipe = recipe.replace("every = 12", "every = 500\nmax_batches = 1")
    return re.sub("^batch_size = 8$", "batch_size = 1", recipe, flags=re.MULTILINE)


def _trainer(place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainkit", "run", "tiny.toml", "--plain"]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _parts(
    trainer: subprocess.Popen[bytes], run: Path, chance: random.Random, parts: int
) -> Iterator[tuple[int, Taken]]:
    """Yield the number of each part that is over, and the median of what the trainer held while it lasted."""
    part, seen = 0, list[Taken]()
    while part < parts and trainer.poll() is None:
        time.sleep(PAUSE)
        if (step := last_step(run)) == 0:
            continue
        _do(chance.choice(DEEDS), run)
        try:
            seen.append(_taken(trainer.pid))
        except (OSError, KeyError):  # it has ended meanwhile
            break
        if step // PART > part:
            yield part, Taken(*map(median, zip(*seen, strict=True)))
            part, seen = step // PART, []


def _do(deed: str, run: Path) -> None:
    """Do one thing that a person does with a run, which may be over already."""
    if deed in ("watch", "runs"):
        target = [str(run), "--once"] if deed == "watch" else [str(run.parent)]
        subprocess.run([sys.executable, "-m", "trainkit", deed, *target], capture_output=True, check=False)
        return
    try:
        if deed == "pause":
            send(run, "pause")
            send(run, "continue")
        else:
            send(run, deed, "the cat" if deed == "sample" else None)
    except TrainkitError:
        return


def _taken(pid: int) -> Taken:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return Taken(1024 * int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"]))
