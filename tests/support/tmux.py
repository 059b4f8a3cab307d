"""A window of tmux, which is a real terminal."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from places import LIMIT
from trainer import environment

#: For every test that needs it.
needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: the terminal was not tested"
)


class Terminal:
    """A tmux window: keys in, screen out."""

    def __init__(self, directory: Path) -> None:
        self._socket, self._open = f"trainkit-{uuid.uuid4().hex[:8]}", True
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "-c", str(directory), "sh")
        # what a viewer remembers of another test is none of its business
        state = str(directory / "state")
        for name, value in (("PS1", "$ "), ("TERM", "tmux-256color"), ("XDG_STATE_HOME", state)):
            self.type(f"export {name}={shlex.quote(value)}")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def trainkit(self, words: str) -> None:
        """A command of ours; "ended with" its exit code is told after it."""
        self.type(f"{shlex.quote(sys.executable)} -m trainkit {words}; echo ended with $?")

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

    def shell(self) -> int:
        """The process id of what was started first in the window."""
        return int(self._tmux("list-panes", "-F", "#{pane_pid}"))

    def close(self) -> None:
        """As when its window is closed, or the connection to it is lost."""
        if self._open:
            self._open = False
            self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
        return done.stdout


def end_all(directory: Path) -> None:
    """Kill every process that works in this directory: a trainer outlives its terminal, and would take a processor from
    all tests to come."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(directory):
                os.kill(int(process.name), signal.SIGKILL)
