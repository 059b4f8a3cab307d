"""Power cuts: a run trains on a file system in a file, which is copied while the run is stopped, as a disk that loses
its power keeps it. The run is then resumed on the copy.

What was written and not flushed is not in the copy, or only in part. Mounting needs root.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_kinds.workplace import NAME, Outcome, Workplace, judge, trainkit, write_inputs

IMAGE_BYTES = 128 << 20
#: How often a run is cut: the disk is copied so many times while it trains.
CUTS_PER_RUN = 4


def cut_power(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Cut the power of runs at random moments, and yield what became of each; nothing where that is impossible."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        print("power-cuts: not tried: mounting a file system needs root and mkfs.ext4", file=sys.stderr)
        return
    while times > 0:
        with tempfile.TemporaryDirectory(prefix="power-") as place:
            directory, number = Path(place), min(times, CUTS_PER_RUN)
            for image, moment in _images(directory, number, chance):
                with _mounted(image, directory / "disk"):
                    yield _resumed(workplace, directory / "disk" / "work", moment)
                image.unlink()
        times -= number


def _images(directory: Path, number: int, chance: random.Random) -> list[tuple[Path, str]]:
    """Train a run and return copies of its disk at random moments after its directory appeared, and the moments."""
    image, disk = directory / "disk.img", directory / "disk"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk.mkdir()
    found: list[tuple[Path, str]] = []
    with _mounted(image, disk):
        write_inputs(disk / "work")
        subprocess.run(["sync", "-f", disk], check=True)
        trainer = _start(disk / "work")
        try:
            while len(found) < number and trainer.poll() is None:
                time.sleep(chance.uniform(0.02, 0.6))
                trainer.send_signal(signal.SIGSTOP)
                copy = directory / f"cut-{len(found)}.img"
                subprocess.run(["cp", "--sparse=always", image, copy], check=True)
                found.append((copy, _moment(disk / "work" / "runs" / NAME)))
                trainer.send_signal(signal.SIGCONT)
        finally:
            trainer.kill()
            trainer.wait()
    return found


def _start(place: Path) -> subprocess.Popen[bytes]:
    """Start a trainer and return once its first checkpoint is being written, or it has ended."""
    command = [sys.executable, "-m", "trainkit", "run", "tiny.toml", "--plain"]
    trainer = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while trainer.poll() is None and not (place / "runs" / NAME / "checkpoints").exists():
        time.sleep(0.01)
    return trainer


def _moment(run: Path) -> str:
    steps = sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdecimal())
    return f"cut with the checkpoints {steps}"


def _resumed(workplace: Workplace, place: Path, moment: str) -> Outcome:
    """Resume what a power cut has left. A run of which nothing was committed may be gone."""
    run = place / "runs" / NAME
    if not (run / "recipe.toml").exists():
        return Outcome("lost", f"{moment}: there is no recipe")
    empty = [str(path.relative_to(run)) for path in run.rglob("*.json*") if path.stat().st_size == 0]
    done = trainkit(place, "resume", NAME, "--plain")
    outcome = judge(workplace, run, done, f"{moment}; empty: {empty}")
    if outcome.result == "refused":
        finished = "the run is finished" in done.stderr
        return (
            judge(workplace, run, subprocess.CompletedProcess([], 0, "", ""), moment)
            if finished
            else Outcome("lost", outcome.what)
        )
    return outcome


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)
