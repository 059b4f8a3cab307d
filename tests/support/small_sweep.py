"""Sweeps of a small recipe whose trials are not trained: their logs are written at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import fake_run
from trainer import BARE

from trainkit.cli.sweep import leaderboard_lines
from trainkit.errors import DONE
from trainkit.events.log import EventLog
from trainkit.events.tail import last_attempt
from trainkit.rundir.directory import recipe_of
from trainkit.search.study import Study, study_of
from trainkit.search.sweep import run

GRID = """
[sweep.parameters]
"optimizer.learning_rate" = { low = 1e-4, high = 1e-2, log = true, points = 3 }
"model.layers" = { low = 1, high = 2 }
"""


def study(directory: Path, sweep: str = GRID) -> Study:
    """Return the sweep of a small recipe with this `[sweep]`, in a directory of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    recipe = directory / "tiny.toml"
    recipe.write_text(BARE + sweep)
    return study_of(recipe, [f'run.directory="{directory}/runs"'])


class Ended:
    """A process that has ended."""

    def poll(self) -> int:
        return 0

    def terminate(self) -> None: ...


class Killed(BaseException):
    """The end of a sweep that had no time to do anything about it."""


def fake_trainer(directory: Path, environment: Mapping[str, str]) -> Ended:
    """Write the log of a run whose loss depends on its recipe; a learning rate of 1e-4 fails."""
    recipe = recipe_of(directory).recipe
    rate = recipe.optimizer.learning_rate
    log = EventLog(directory, attempt=last_attempt(directory) + 1)
    log.write("run_started", step=0, **fake_run.started(directory.name))
    log.write("planned", step=0, total_steps=10, plan=fake_run.PLAN, devices=["cpu"])
    for step in range(1, 11):
        log.write("step", step=step, metrics={"train/loss": 10 - step + rate + recipe.model.layers})
    status, code = ("failed", 1) if rate == 1e-4 else ("finished", 0)
    log.write("run_finished", step=10, status=status, exit_code=code, message="the loss is nan" * code)
    log.close()
    return Ended()


def killing_trainer(at: int) -> tuple[Callable[[Path, Mapping[str, str]], Ended], list[str]]:
    """Return a trainer that kills the sweep as trial `at` starts, once, and the names of the trials it started."""
    started: list[str] = []

    def start(directory: Path, environment: Mapping[str, str]) -> Ended:
        started.append(directory.name)
        if len(started) == at + 1:
            raise Killed
        return fake_trainer(directory, environment)

    return start, started


def board(found: Study) -> list[list[str]]:
    """Return the cells of the leaderboard, without the times; then the lines below it."""
    rows = [re.split(r"\s{2,}", line) for line in leaderboard_lines(found)]
    return [row[:4] + row[5:] for row in rows]


def finish(found: Study, start: Callable[..., Ended] = fake_trainer) -> list[str]:
    """Run the sweep to its end, and return its leaderboard and what it reported."""
    lines: list[str] = []
    assert run(found, lines.append, start=start, pause=0) == DONE
    return lines
