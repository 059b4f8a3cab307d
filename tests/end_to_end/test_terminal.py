"""The dashboard in a real terminal, over a real trainer."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fake_run
import pytest
from tmux import Terminal, end_all, needs_tmux
from trainer import BARE, LIMIT, workplace

from trainkit.dashboard.pages import KEYS, NAMES
from trainkit.events.attempts import process_alive
from trainkit.events.commands import send
from trainkit.events.tail import read

pytestmark = needs_tmux

#: Of a run that is running, evaluating or saving: the last two last for a moment.
AT_WORK = "  ● "
#: It only trains: runs that do not end by themselves would evaluate and save all the time.
RECIPE = BARE.replace("keep_every = 6\n", "")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    try:
        terminal = Terminal(workplace(tmp_path, RECIPE))
        yield terminal
        terminal.close()
    finally:
        end_all(tmp_path)


def train(terminal: Terminal, directory: Path, *options: str, seen: str = AT_WORK) -> Path:
    """Begin a run that does not end by itself, and wait until this is on the screen."""
    terminal.trainkit(" ".join(["run tiny.toml --set train.steps=1000000", *options]))
    terminal.until(lambda screen: seen in screen)
    return directory / "runs" / "tiny"


def step_of(run: Path) -> int:
    return max((event["step"] for event in read(run)), default=0)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def tells(*texts_and_screen: str) -> bool:
    """Whether all of the texts are on the screen, which comes last."""
    *texts, screen = texts_and_screen
    return all(text in screen for text in texts)


def goes_on(run: Path) -> None:
    step, deadline = step_of(run), time.monotonic() + LIMIT
    while step_of(run) < step + 20:
        assert time.monotonic() < deadline, "the run did not go on"
        time.sleep(0.1)


def test_it_draws_resizes_detaches_attaches_again_and_stops(tmp_path: Path, terminal: Terminal) -> None:
    run = train(terminal, tmp_path)
    screen = terminal.until(lambda screen: any(0x2800 < ord(c) < 0x2900 for c in screen))
    assert "tiny" in screen and "/ 1,000,000" in screen

    terminal.resize(70, 24)
    narrow = terminal.until(lambda screen: AT_WORK in screen and len(screen.splitlines()[0]) <= 70)
    assert max(map(len, narrow.splitlines())) <= 70
    terminal.resize(140, 45)
    terminal.until(lambda screen: AT_WORK in screen and max(map(len, screen.splitlines())) > 120)

    terminal.press("q")
    farewell = terminal.until(lambda screen: "ended with 0" in screen)
    assert "trainkit watch" in farewell
    goes_on(run)

    terminal.type("clear")
    terminal.trainkit("watch tiny")
    terminal.until(lambda screen: AT_WORK in screen)
    terminal.press("S")
    terminal.until(lambda screen: "Stop this run?" in screen)
    terminal.press("n")
    terminal.until(lambda screen: "Stop this run?" not in screen and AT_WORK in screen)
    terminal.press("S")
    terminal.until(lambda screen: "Stop this run?" in screen)
    terminal.press("y")
    terminal.until(lambda screen: "■ stopped" in screen)
    finished = read(run)[-1]
    assert finished["type"] == "run_finished" and finished["exit_code"] == 75
    assert (run / "checkpoints" / str(finished["step"]) / "manifest.json").exists()
    terminal.press("q")
    terminal.until(lambda screen: "ended with 0" in screen)


def test_a_viewer_that_is_killed_and_a_terminal_that_is_closed_leave_shell_and_run_alone(
    tmp_path: Path, terminal: Terminal
) -> None:
    run = train(terminal, tmp_path)
    (parent,) = children(terminal.shell())
    (viewer,) = (child for child in children(parent) if os.getsid(child) == os.getsid(parent))
    os.kill(viewer, signal.SIGKILL)
    screen = terminal.until(lambda screen: "ended with 137" in screen)
    assert AT_WORK not in screen and "killed by signal 9" in screen
    terminal.type("echo it is $((20 + 22))")
    terminal.until(lambda screen: "it is 42" in screen)
    goes_on(run)

    terminal.trainkit("watch tiny")
    terminal.until(lambda screen: AT_WORK in screen)
    (parent,) = children(terminal.shell())
    viewers = [parent, *children(parent)]
    terminal.close()
    goes_on(run)
    deadline = time.monotonic() + LIMIT
    while any(process_alive(viewer, None) for viewer in viewers):
        assert time.monotonic() < deadline, "the viewer does not end with its terminal"
        time.sleep(0.1)
    assert send(run, "stop").ok


def test_with_stderr_in_a_file_the_dashboard_is_drawn_and_the_file_has_messages_alone(
    tmp_path: Path, terminal: Terminal
) -> None:
    run = train(terminal, tmp_path, "2> errors.txt")
    terminal.press("q")
    screen = terminal.until(lambda screen: "ended with 0" in screen)
    assert AT_WORK not in screen
    errors = (tmp_path / "errors.txt").read_text()
    assert "trainkit watch" in errors and "\x1b" not in errors
    assert send(run, "stop").ok


def test_where_no_dashboard_can_be_drawn_a_run_is_trained_and_reported_as_lines(terminal: Terminal) -> None:
    command = f"{shlex.quote(sys.executable)} -m trainkit run tiny.toml --set train.steps=3"
    terminal.type(f"TERM=dumb {command}; echo ended with $?")
    terminal.until(partial(tells, "ended with 0", "finished at step 3"))


def test_a_finished_run_is_replayed_and_goes_to_a_step(tmp_path: Path, terminal: Terminal) -> None:
    fake_run.write(tmp_path / "runs" / "fake", fake_run.events(3000, total=3000))
    terminal.trainkit("watch fake --replay")
    terminal.until(lambda screen: "replay x10" in screen)
    terminal.press("Space")
    terminal.until(lambda screen: "replay paused" in screen)
    terminal.press("G")
    terminal.until(lambda screen: "Go to step" in screen)
    terminal.type("120")
    terminal.until(lambda screen: "step 120 / 3,000" in screen)
    terminal.press("q")
    terminal.until(lambda screen: "ended with 0" in screen and "left the replay" in screen)


def test_a_terminal_shrinks_to_almost_nothing_and_grows_again_and_every_page_is_there(
    tmp_path: Path, terminal: Terminal
) -> None:
    fake_run.write(tmp_path / "runs" / "fake", fake_run.events(300, total=300))
    terminal.trainkit("watch fake")
    terminal.until(lambda screen: "learning rate" in screen and "step 300 / 300" in screen)
    terminal.resize(60, 20)
    for name in reversed(NAMES):
        terminal.press(KEYS[name])
        screen = terminal.until(partial(tells, f"{KEYS[name]} {name}", "? help"))
        assert max(map(len, screen.splitlines())) <= 60 and "learning rate" not in screen
    for columns, rows in ((22, 5), (60, 4), (20, 20)):
        terminal.resize(columns, rows)
        terminal.until(partial(tells, f"too small: {columns} x {rows}"))
    terminal.resize(120, 40)
    terminal.until(lambda screen: "learning rate" in screen and "too small" not in screen)
    terminal.press("q")
    terminal.until(lambda screen: "ended with 0" in screen)


def test_a_run_is_opened_from_the_list_left_again_and_the_list_is_as_it_was(tmp_path: Path, terminal: Terminal) -> None:
    for name, steps in (("first", 200), ("second", 300)):
        fake_run.write(tmp_path / "runs" / name, fake_run.events(steps, total=300))
    terminal.trainkit("watch runs/")
    terminal.until(lambda screen: "2 runs" in screen and "200/300" in screen and "300/300" in screen)
    terminal.press("/")
    terminal.type("first")
    terminal.until(lambda screen: "200/300" in screen and "300/300" not in screen)
    terminal.press("Enter")
    terminal.until(lambda screen: "step 200 / 300" in screen and "learning rate" in screen)
    terminal.press("q")
    terminal.until(lambda screen: "2 runs" in screen and "200/300" in screen and "300/300" not in screen)
    terminal.press("q")
    terminal.until(lambda screen: "ended with 0" in screen and "2 runs" not in screen)


def test_two_viewers_watch_one_run_and_neither_hinders_the_other_nor_the_run(
    tmp_path: Path, terminal: Terminal
) -> None:
    run = train(terminal, tmp_path, "--detach", seen="ended with 0")
    other = Terminal(tmp_path)
    try:
        for window in (terminal, other):
            window.trainkit("watch tiny --readonly")
        for window in (terminal, other):
            window.until(lambda screen: AT_WORK in screen)
        terminal.press("c")
        terminal.until(lambda screen: "is read-only" in screen)
        other.close()
        goes_on(run)
        terminal.until(lambda screen: AT_WORK in screen)
        assert send(run, "stop").ok
        terminal.until(lambda screen: "■ stopped" in screen)
    finally:
        other.close()
