"""A small run whose faultless end is known, to do something to."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainkit.checkpoint import store
from trainkit.events.tail import NAME as LOG
from trainkit.events.tail import read

OUTCOMES = ("exact", "fell back", "refused", "reported", "lost", "wrong")
STEPS = 24
NAME = "tiny"
RECIPE = f"""
schema = 1
[run]
name = "{NAME}"
[model]
type = "gpt2"
layers = 2
hidden = 32
heads = 2
[tokenizer]
train = {{ vocab_size = 300 }}
[data]
sequence_length = 32
held_out = 0.1
encoding = {{ type = "pack" }}
[[data.train]]
path = "text/*.jsonl"
[train]
steps = {STEPS}
batch_size = 8
micro_batch_size = 1
[optimizer]
learning_rate = 1e-2
[checkpoint]
keep_every = 6
best = {{ metric = "validation/held-out/loss", mode = "min" }}
[evaluate]
every = 12
[track]
aim = false
"""
WORDS = "the cat sat on a mat and saw one dog run far from home while rain fell over all old roads near us"


class Outcome(NamedTuple):
    """What became of a run after a fault."""

    result: str
    """One of `OUTCOMES`."""
    what: str = ""
    """The fault, and what it did."""
    where: str = ""
    """The kind of file that it was in."""
    resumed: bool = True
    """Whether a process resumed the run to its end; otherwise what it would read was compared."""


@dataclass(frozen=True)
class Workplace:
    """A directory with a recipe, its text and a finished run, and what that run ended with."""

    directory: Path
    end: str
    """A digest of the arrays of the last checkpoint."""
    losses: dict[int, float | None]

    @staticmethod
    def make(directory: Path) -> Workplace:
        """Return a workplace in a directory, after training the run to its end."""
        write_inputs(directory)
        done = trainkit(directory, "run", "tiny.toml", "--plain")
        assert done.returncode == 0, done.stderr
        run = directory / "runs" / NAME
        return Workplace(directory, end_of(run), losses_of(run))

    @property
    def run(self) -> Path:
        """Return the finished run."""
        return self.directory / "runs" / NAME


def write_inputs(directory: Path) -> None:
    """Write the recipe and its text, the same each time."""
    chance = random.Random(0)
    (directory / "text").mkdir(parents=True)
    for number in range(3):
        rows = [" ".join(chance.choices(WORDS.split(), k=chance.randrange(20, 200))) for _ in range(40)]
        text = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (directory / "text" / f"{number}.jsonl").write_text(text)
    (directory / "tiny.toml").write_text(RECIPE)


def trainkit(directory: Path, *arguments: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a command of trainkit in a directory to its end."""
    command = [sys.executable, "-m", "trainkit", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=seconds)


def end_of(run: Path) -> str:
    """Return a digest of the arrays of a run's newest checkpoint, with its step."""
    digest = hashlib.sha256()
    info = store.newest(run)
    for path in sorted((info.directory / "arrays").rglob("*")) if info else ():
        if path.is_file():
            digest.update(path.relative_to(run).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def losses_of(run: Path) -> dict[int, float | None]:
    """Return the loss of each step in a run's log; None where a flipped bit changed its key."""
    steps = (event for event in read(run) if event["type"] == "step")
    return {event["step"]: event.get("metrics", {}).get("train/loss") for event in steps}


def lines_of(run: Path) -> int:
    """Return the lines of a run's log."""
    return (run / LOG).read_bytes().count(b"\n") if (run / LOG).exists() else 0


def judge(workplace: Workplace, run: Path, done: subprocess.CompletedProcess[str], what: str) -> Outcome:
    """Return what became of a run that was resumed to its end."""
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
        return Outcome("lost", f"{what}: exit {done.returncode}: {done.stderr[-300:]}")
    if done.returncode:
        return Outcome("refused", f"{what}: {done.stderr}")
    if end_of(run) != workplace.end:
        return Outcome("wrong", f"{what}: the last checkpoint differs")
    losses = losses_of(run)
    if other := [step for step, loss in workplace.losses.items() if losses.get(step) != loss]:
        return Outcome("lost", f"{what}: the log lacks steps {other} or has others for them")
    return Outcome("fell back" if "is damaged and was skipped" in done.stdout else "exact", what)


class Snapshot:
    """The files in a directory, which can be brought back after a fault and what followed it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directories, self._files = set[Path](), dict[Path, tuple[bytes, os.stat_result]]()
        for path in directory.rglob("*"):
            if path.is_file():
                self._files[path] = path.read_bytes(), path.stat()
            elif path.is_dir():
                self._directories.add(path)

    def restore(self) -> None:
        """Remove new files, and write those again that are gone or were written since."""
        for root, directories, names in os.walk(self._directory, topdown=False):
            for path in (Path(root, name) for name in names):
                if path not in self._files:
                    path.unlink()
            for path in (Path(root, name) for name in directories):
                if path not in self._directories:
                    path.rmdir()
        for path in sorted(self._directories):
            path.mkdir(exist_ok=True)
        for path, (content, before) in self._files.items():
            if not path.exists() or _signature(path.stat()) != _signature(before):
                path.write_bytes(content)
                path.chmod(before.st_mode)
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _signature(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_mtime_ns, seen.st_size


def cut_off(run: Path, *, after: int) -> None:
    """Make a finished run one that was killed after this step: without later checkpoints and the rest of its log."""
    for path in store.step_directories(run):
        if int(path.name) > after:
            shutil.rmtree(path)
    log, kept = run / LOG, bytearray()
    for line in log.read_bytes().splitlines(keepends=True):
        kept += line
        event = json.loads(line)
        if (event["type"], event["step"]) == ("step", after):
            break
    log.write_bytes(kept)
