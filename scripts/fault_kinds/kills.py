"""Kills: a real run is killed with SIGKILL at random moments of its life, and resumed each time, until it ends."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fault_kinds.workplace import NAME, Outcome, Workplace, judge, trainkit, write_inputs
from trainkit.events.log import NAME as LOG

#: How often a run is killed before it may end.
KILLS_PER_RUN = 8
#: The share of kills that come before the attempt's first event; the others come after one of its first events.
BEFORE_EVENTS = 0.25
#: The latest event of an attempt that is waited for, and seconds after it within which the kill comes.
LATEST_EVENT, SECONDS_AFTER = 40, 0.1
#: Seconds from the start of a process to its first events on a slow machine.
START_SECONDS = 4.0


def kill_trainers(workplace: Workplace, times: int, chance: random.Random) -> Iterator[Outcome]:
    """Kill runs at random moments, and yield for each kill how its run ended."""
    while times > 0:
        with tempfile.TemporaryDirectory(prefix="kills-") as directory:
            place = Path(directory) / "work"
            write_inputs(place)
            moments = [_start_and_kill(place, chance) for _ in range(min(times, KILLS_PER_RUN))]
            times -= len(moments)
            outcome = _end(workplace, place, "; ".join(moments))
            yield from (outcome for _ in moments)


def _start_and_kill(place: Path, chance: random.Random) -> str:
    """Start or resume the run, kill its trainer at a random moment, and return that moment in words."""
    command, log = _command(place), place / "runs" / NAME / LOG
    events = None if chance.random() < BEFORE_EVENTS else _lines(log) + chance.randint(1, LATEST_EVENT)
    seconds = chance.uniform(0, START_SECONDS if events is None else SECONDS_AFTER)
    trainer = subprocess.Popen(
        [sys.executable, "-m", "trainkit", *command], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while events is not None and trainer.poll() is None and _lines(log) < events:
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        trainer.wait(seconds)
    trainer.kill()
    trainer.wait()
    return f"{command[0]} killed with {_lines(log)} lines in the log"


def _command(place: Path) -> list[str]:
    exists = (place / "runs" / NAME).exists()
    return ["resume", NAME, "--plain"] if exists else ["run", "tiny.toml", "--plain"]


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _end(workplace: Workplace, place: Path, what: str) -> Outcome:
    """Let a run go on to its end, and return what became of it."""
    done = trainkit(place, *_command(place))
    if done.returncode == 2 and "the run is finished" in done.stderr:
        done = subprocess.CompletedProcess([], 0, "", "")
    outcome = judge(workplace, place / "runs" / NAME, done, what)
    return Outcome("lost", outcome.what) if outcome.result == "refused" else outcome
