"""What is on the screen is the run as it is now."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fake_run
import pytest
from textual.pilot import Pilot
from tmux import Terminal, end_all
from trainer import workplace
from viewer import drive, screen_text, until, write_run

from trainkit.dashboard import app
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.charts.titles import format_value
from trainkit.dashboard.panels.overview import LossChart
from trainkit.events.commands import send
from trainkit.events.log import EventLog
from trainkit.events.tail import NAME, read
from trainkit.events.view import View
from trainkit.rundir.follow import SLICE_BYTES, LogFollower

#: The chart of the loss and its last value.
CHART = re.compile(r"─ loss \d")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The step of the view at each drawing of the loss."""
    steps: list[int] = []
    show = LossChart.show_view

    def counted(chart: LossChart, view: View) -> None:
        steps.append(view.step)
        show(chart, view)

    monkeypatch.setattr(LossChart, "show_view", counted)
    return steps


def test_a_key_polls_and_repaints_whenever_the_next_look_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[int]
) -> None:
    run = write_run(tmp_path / "quickstart")
    for name in ("POLL", "REST", "DRAW"):
        monkeypatch.setattr(app, name, 1e6)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        log = EventLog(run, attempt=1)
        for step, key in enumerate(("x", "j", "tab", "2", "1", "z"), 301):
            log.write("step", step=step, metrics={"train/loss": 2.0})
            log.write("log", step=step, level="info", message=f"word {step}")
            await pilot.press(key)
            await pilot.pause()
            text = screen_text(dashboard)
            assert f"step {step} / 600" in text, key
            if key != "2":
                assert drawn[-1] == step and f"word {step}" in text, key

    drive(run, steps, size=(120, 40))


def test_what_nobody_is_to_wait_for_redraws_everything_at_once_and_a_step_alone_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[int]
) -> None:
    run = write_run(tmp_path / "quickstart")
    monkeypatch.setattr(app, "DRAW", 1e6)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        log = EventLog(run, attempt=1)
        order = {"argument": None, "detail": "", "total_steps": None}
        evaluated = {"name": "held-out", "metrics": {"validation/held-out/loss": 2.0}, "seconds": 0.1}
        for step, (kind, fields) in enumerate(
            (
                ("control", {"command": "pause", **order}),
                ("control", {"command": "continue", **order}),
                ("alert", {"kind": "spike", "message": "m"}),
                ("evaluated", evaluated),
                ("step", {"metrics": {"train/new": 1.0}}),
                ("run_finished", {"status": "finished", "exit_code": 0, "message": ""}),
            ),
            301,
        ):
            before = len(drawn)
            log.write("step", step=step, metrics={"train/loss": 2.0})
            await until(lambda step=step: f"step {step} / 600" in screen_text(dashboard), pilot)
            assert len(drawn) == before
            log.write(kind, step=step, **fields)
            await until(lambda before=before: len(drawn) > before, pilot)
            assert drawn[-1] == step

    drive(run, steps, size=(120, 40))


def test_until_a_log_has_been_read_its_middle_is_not_reported(tmp_path: Path) -> None:
    first = [{**event, "pid": 1 << 22} if "pid" in event else event for event in fake_run.events(500, total=900)]
    told = [*first, *fake_run.events(900, attempt=2, resumed_from=400, total=900)]
    source = LogFollower(fake_run.write(tmp_path / "long", told))
    shares, size = [], (tmp_path / "long" / NAME).stat().st_size
    while source.advance(seconds=0):
        assert source.state(time.time()) == "waiting" and source.read_share is not None
        shares.append(source.read_share)
    assert shares == sorted(shares) and len(shares) >= size // SLICE_BYTES - 1
    assert source.read_share is None and source.view.attempt == 2
    assert source.state(told[-1]["t"]) == "running"


def test_a_process_that_has_taken_over_is_looked_at_at_once(tmp_path: Path) -> None:
    died = [{**event, "pid": 1 << 22} if "pid" in event else event for event in fake_run.events(9, total=20)]
    source, now = LogFollower(fake_run.write(tmp_path / "run", died)), died[-1]["t"]
    source.advance(seconds=9)
    assert source.state(now) == "crashed"
    with (tmp_path / "run" / NAME).open("a") as log:
        for event in fake_run.events(12, attempt=2, resumed_from=5, total=20):
            log.write(json.dumps({**event, "t": now}) + "\n")
    source.advance(seconds=9)
    assert source.state(now) == "running"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: the terminal was not tested")
    try:
        terminal = Terminal(workplace(tmp_path))
        yield terminal
        terminal.close()
    finally:
        end_all(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run that goes on at seven steps a second, and obeys commands."""
    run = tmp_path / "runs" / "live"
    trainer = subprocess.Popen([sys.executable, fake_run.__file__, run, "100000", "0.14"])
    while not (run / NAME).exists():
        assert trainer.poll() is None
        time.sleep(0.05)
    yield run
    trainer.kill()
    trainer.wait()


def step_of(screen: str) -> int:
    """Return the step in the header; 0 as long as there is none."""
    header = re.search(r"step ([\d,]+) /", screen)
    return int(header[1].replace(",", "")) if header else 0


def shows_the_end(run: Path, screen: str) -> bool:
    """Return whether the header and the chart of the loss are those of the last step in the log."""
    last = [event for event in read(run) if event["type"] == "step"][-1]
    loss = format_value("train/loss", last["metrics"]["train/loss"])
    return step_of(screen) == last["step"] and f"─ loss {loss}" in screen


def test_a_screen_follows_a_run_its_commands_and_its_end(run: Path, terminal: Terminal) -> None:
    """How many seconds it is behind beside busy processors: `scripts/bench/dashboard.py ages`."""
    terminal.resize(130, 40)
    terminal.trainkit("watch live")
    first = step_of(terminal.until(lambda screen: "● running" in screen and CHART.search(screen) is not None))
    terminal.until(lambda screen: step_of(screen) > first + 7)
    terminal.press("p")
    terminal.until(lambda screen: "‖ paused" in screen)
    terminal.press("p")
    terminal.until(lambda screen: "● running" in screen)
    for page in "2121":  # who turns pages sees the log go on
        terminal.press(page)
        first = step_of(terminal.until(lambda screen, page=page: (CHART.search(screen) is not None) == (page == "1")))
        terminal.until(lambda screen, first=first: step_of(screen) > first)
    assert send(run, "stop").ok
    terminal.until(lambda screen: "■ stopped" in screen)
    terminal.until(lambda screen: shows_the_end(run, screen))
