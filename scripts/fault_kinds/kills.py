"""Kills: a real run is killed with SIGKILL at random moments of its life, and resumed each time, until it ends."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fault_kinds.workplace import NAME, Outcome, Workplace, judge, lines_of, trainkit, write_inputs

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
            place, moments = Path(directory) / "work", list[str]()
            write_inputs(place)
            while len(moments) < min(times, KILLS_PER_RUN) and (moment := _start_and_kill(place, chance)):
                moments.append(moment)
            outcome = _end(workplace, place, "; ".join(moments))
            yield from (outcome for _ in moments)
            times -= len(moments)


def _start_and_kill(place: Path, chance: random.Random) -> str:
    """Start or resume the run, kill its trainer at a random moment, and return that moment in words; nothing if the
    trainer ended before."""
    command, run = _command(place), place / "runs" / NAME
    events = None if chance.random() < BEFORE_EVENTS else lines_of(run) + chance.randint(1, LATEST_EVENT)
    seconds = chance.uniform(0, START_SECONDS if events is None else SECONDS_AFTER)
    trainer = subprocess.Popen(
        [sys.executable, "-m", "trainkit", *command], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while events is not None and trainer.poll() is None and lines_of(run) < events:
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        trainer.wait(seconds)
    trainer.kill()
    return f"{command[0]} killed with {lines_of(run)} lines in the log" * (trainer.wait() == -signal.SIGKILL)


def _command(place: Path) -> list[str]:
    exists = (place / "runs" / NAME).exists()
    return ["resume", NAME, "--plain"] if exists else ["run", "tiny.toml", "--plain"]


def _end(workplace: Workplace, place: Path, what: str) -> Outcome:
    """Let a run go on to its end, and return what became of it."""
    outcome = judge(workplace, place / "runs" / NAME, trainkit(place, *_command(place)), what)
    return outcome._replace(result="lost") if outcome.result == "refused" else outcome
