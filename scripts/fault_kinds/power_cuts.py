"""Power cuts: a run trains on a file system in a file, which is copied while the run is stopped, as a disk that loses
its power keeps it. The run is then resumed on the copy.

What was written and not flushed is not in the copy, or only in part. A copy during which the kernel wrote to the file
is made again: it would have parts of two moments, which no power cut leaves. Mounting needs root.
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

from fault_kinds.workplace import NAME, Outcome, Workplace, judge, lines_of, trainkit, write_inputs

IMAGE_BYTES = 128 << 20
#: How often a run is cut: the disk is copied so many times while it trains.
CUTS_PER_RUN = 4
#: The most lines that the log grows by between two cuts, and the most seconds after the last of them.
LINES, SECONDS = 20, 0.03


def cut_power(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Cut the power of runs at random moments, and yield what became of each; nothing where that is impossible."""
    if (reason := why_impossible()) is not None:
        print(f"power-cuts: not tried: {reason}", file=sys.stderr)
        return
    while times > 0:
        with tempfile.TemporaryDirectory(prefix="power-") as place:
            directory = Path(place)
            images = _images(directory, min(times, CUTS_PER_RUN), chance)
            for image, moment in images:
                with _mounted(image, directory / "disk"):
                    yield _resumed(workplace, directory / "disk" / "work", moment)
                image.unlink()
        times -= len(images)


def why_impossible() -> str | None:
    """Return why no file system can be mounted here; None if one can."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        return "mounting a file system needs root and mkfs.ext4"
    with tempfile.TemporaryDirectory(prefix="power-") as place:
        image, disk = Path(place) / "disk.img", Path(place) / "disk"
        disk.mkdir()
        try:
            _make_file_system(image)
            with _mounted(image, disk):
                return None
        except subprocess.CalledProcessError as error:
            return f"this machine cannot mount a file as a disk: {error}"


def _make_file_system(image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)


def _images(directory: Path, number: int, chance: random.Random) -> list[tuple[Path, str]]:
    """Train a run and return copies of its disk at random moments after its directory appeared, and the moments."""
    image, disk = directory / "disk.img", directory / "disk"
    _make_file_system(image)
    disk.mkdir()
    found: list[tuple[Path, str]] = []
    with _mounted(image, disk):
        write_inputs(disk / "work")
        subprocess.run(["sync", "-f", disk], check=True)
        trainer = _start(disk / "work")
        try:
            while len(found) < number and _wait_for_moment(trainer, disk / "work" / "runs" / NAME, chance):
                trainer.send_signal(signal.SIGSTOP)
                copy = directory / f"cut-{len(found)}.img"
                _copy(image, copy, disk)
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


def _wait_for_moment(trainer: subprocess.Popen[bytes], run: Path, chance: random.Random) -> bool:
    """Wait for a random moment of the run; return whether the trainer is still alive."""
    until = lines_of(run) + chance.randint(0, LINES)
    while trainer.poll() is None and lines_of(run) < until:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, SECONDS))
    return trainer.poll() is None


def _copy(image: Path, to: Path, disk: Path) -> None:
    """Copy the file in which a file system is, as it is at one moment."""
    device = os.stat(disk).st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    while True:
        before = _writes(counters)
        subprocess.run(["cp", "--sparse=always", image, to], check=True)
        if before == _writes(counters):
            return


def _writes(counters: Path) -> tuple[str, ...]:
    """Return how often a device was written to and flushed, and how much of it is under way."""
    fields = counters.read_text().split()
    return fields[4], fields[8], *fields[15:16]


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
    return outcome._replace(result="lost") if outcome.result == "refused" else outcome


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, at], check=True, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)
