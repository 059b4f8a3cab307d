"""Signals to real processes before a run exists, in its first moments, and while its exports finish.

With `test_attempt.py`, which has the phases between, each cell of the table in docs/architecture.md is tested.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import signal_at_import
from places import LIMIT
from trainer import BARE, Trainer, ending, environment, losses, trainkit, workplace

from trainkit.events.tail import read
from trainkit.rundir.directory import EXPORTS

TERM, HUP, INT = signal.SIGTERM, signal.SIGHUP, signal.SIGINT
STEPS = 2
RECIPE = BARE.replace("steps = 24", f"steps = {STEPS}").replace("keep_every = 6", "keep_every = 2")
#: Modules that `trainkit run` imports before it makes the run's directory: the first one, one in C, the last one.
BEFORE = ["trainkit.cli", "pydantic_core._pydantic_core", "trainkit.rundir.directory"]
#: A module that it imports when the directory exists, and the attempt does not handle signals yet.
AFTER = "trainkit.run.attempt"


def signalled(directory: Path, module: str, *numbers: int) -> subprocess.CompletedProcess[str]:
    """Run the recipe in a process that gets signals when it imports a module."""
    given = [module, ",".join(str(int(number)) for number in numbers), "run", "tiny.toml", "--plain"]
    command = [sys.executable, signal_at_import.__file__, *given]
    return subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return workplace(tmp_path, RECIPE, documents=5)


@pytest.mark.parametrize("module", BEFORE)
@pytest.mark.parametrize(
    ("numbers", "code"), [([TERM], -TERM), ([HUP], -HUP), ([INT], 130), ([INT, INT], 130)], ids=str
)
def test_a_signal_before_there_is_a_run_ends_the_process_and_leaves_nothing(
    place: Path, module: str, numbers: list[int], code: int
) -> None:
    done = signalled(place, module, *numbers)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert not (place / "runs").exists()


@pytest.mark.parametrize(("numbers", "code"), [([TERM], 75), ([HUP], 75), ([INT], 130), ([INT, INT], 130)], ids=str)
def test_a_signal_to_a_run_that_was_just_created_ends_its_attempt_and_a_resume_trains_it(
    place: Path, numbers: list[int], code: int
) -> None:
    done = signalled(place, AFTER, *numbers)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    runs = place / "runs"
    assert [path.name for path in runs.iterdir()] == ["tiny"], "nothing is half-written"
    assert not (runs / "tiny" / "events.jsonl").exists() and not (runs / "tiny" / "checkpoints").exists()
    if numbers != [TERM]:  # what it left is the same
        return
    assert trainkit(place, "resume", "tiny", "--plain").returncode == 0
    assert sorted(losses(runs / "tiny")) == list(range(1, STEPS + 1))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def waiting(run: Path) -> bool:
    return any(e["type"] == "log" and e["message"].startswith("waiting for the export") for e in read(run))


def exporters(trainer: Trainer) -> list[psutil.Process]:
    return [child for child in psutil.Process(trainer.process.pid).children() if "export" in child.cmdline()]


@pytest.mark.parametrize(("numbers", "code"), [([TERM], 75), ([HUP], 75), ([INT], 130), ([INT, INT], 130)], ids=str)
def test_a_signal_while_exports_finish_ends_the_wait_and_a_resume_makes_the_export(
    place: Path, numbers: list[int], code: int
) -> None:
    (place / "tiny.toml").write_text(f"{RECIPE}[export]\nevery = 1\n")
    with Trainer(place, "run", "tiny.toml", "--plain", held_at=f"checkpoint_started {STEPS}") as trainer:
        assert trainer.until(lambda event: event["type"] == "checkpoint_started" and event["step"] == STEPS)
        trainer.release()
        until(lambda: waiting(trainer.run))
        until(lambda: bool(exporters(trainer)))
        exporter, *_ = exporters(trainer)
        exporter.suspend()  # so that there is something to wait for
        try:
            for number in numbers:
                trainer.process.send_signal(number)
            assert trainer.end() == code, (place / "output.txt").read_text()
        finally:
            exporter.kill()
    run = trainer.run
    assert "Traceback" not in (place / "output.txt").read_text()
    assert ending(run)[1] == STEPS and ending(run)[0] == ("stopped" if code == 75 else "interrupted")
    assert not [path for path in (run / EXPORTS).glob("*") if path.name.isdecimal() and int(path.name) == STEPS]
    assert trainkit(place, "resume", "tiny", "--plain").returncode == 0
    assert (run / EXPORTS / str(STEPS) / "config.json").exists() and not list((run / EXPORTS).glob(".*"))
    assert ending(run)[:2] == ("finished", STEPS) and sorted(losses(run)) == list(range(1, STEPS + 1))
