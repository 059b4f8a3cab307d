"""The dashboard in a real terminal, over a real trainer."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainer import LIMIT, environment, workplace

from trainkit.events.log import read

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: the terminal was not tested"
)


class Terminal:
    """A tmux window: keys in, screen out."""

    def __init__(self, directory: Path) -> None:
        self._socket = f"trainkit-{uuid.uuid4().hex[:8]}"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "-c", str(directory), "sh")
        for name, value in (("PS1", "$ "), ("TERM", "tmux-256color")):
            self.type(f"export {name}={shlex.quote(value)}")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def until(self, seen: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if seen(screen := self.screen()):
                return screen
            time.sleep(0.1)
        raise TimeoutError("this is all that was seen:\n" + self.screen())

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(workplace(tmp_path))
    yield terminal
    terminal.close()


def step_of(run: Path) -> int:
    return max((event["step"] for event in read(run)), default=0)


def test_it_draws_resizes_detaches_attaches_again_and_stops(tmp_path: Path, terminal: Terminal) -> None:
    run = tmp_path / "runs" / "tiny"
    trainkit = f"{shlex.quote(sys.executable)} -m trainkit"
    terminal.type(f"{trainkit} run tiny.toml --set train.steps=1000000; echo ended with $?")
    screen = terminal.until(lambda screen: ("● running" in screen and "⠤" in screen) or "⣀" in screen)
    assert ("tiny" in screen and "1,000,000" in screen.replace(" ", "")) or "1000000" in screen

    terminal.resize(70, 24)
    narrow = terminal.until(lambda screen: "running" in screen and len(screen.splitlines()[0]) <= 70)
    assert max(map(len, narrow.splitlines())) <= 70
    terminal.resize(140, 45)
    terminal.until(lambda screen: "running" in screen and max(map(len, screen.splitlines())) > 120)

    terminal.press("q")
    farewell = terminal.until(lambda screen: "ended with 0" in screen)
    assert "trainkit watch" in farewell
    step = step_of(run)
    deadline = time.monotonic() + LIMIT
    while step_of(run) < step + 20:
        assert time.monotonic() < deadline, "the run did not go on after its viewer was gone"
        time.sleep(0.1)

    terminal.type("clear")
    terminal.type(f"{trainkit} watch tiny; echo ended with $?")
    terminal.until(lambda screen: "● running" in screen)
    terminal.press("S")
    terminal.until(lambda screen: "Stop this run?" in screen)
    terminal.press("n")
    terminal.until(lambda screen: "Stop this run?" not in screen and "running" in screen)
    terminal.press("S")
    terminal.until(lambda screen: "Stop this run?" in screen)
    terminal.press("y")
    terminal.until(lambda screen: "■ stopped" in screen)
    finished = read(run)[-1]
    assert finished["type"] == "run_finished" and finished["exit_code"] == 75
    assert (run / "checkpoints" / str(finished["step"]) / "manifest.json").exists()
    terminal.press("q")
    terminal.until(lambda screen: "ended with 0" in screen)
