"""A command in a terminal of its own, without a person before it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from places import LIMIT

#: Makes the terminal on its standard input the one whose keys are signals to it, and becomes the command.
CONTROLLED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """Attributes:
    terminal, inside: our end of it, which the keys go into, and the command's.
    before: its mode when the command was started.
    written: all that it was sent.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        directory: Path | None = None,
        cells: tuple[int, int] = (30, 100),
        pixels: tuple[int, int] = (0, 0),
        controls: bool = False,
        answers: Mapping[bytes, bytes] | None = None,
        limit: float = LIMIT,
    ) -> None:
        """`cells` are lines and columns, `pixels` a width and a height. Where it `controls` the command, Ctrl-C
        interrupts that. `answers` are what the terminal says, once, when it is asked. After `limit` seconds of waiting
        it is an error that something did not come."""
        self.terminal, self.inside = pty.openpty()
        fcntl.ioctl(self.inside, termios.TIOCSWINSZ, struct.pack("HHHH", *cells, *pixels))
        self.before = termios.tcgetattr(self.inside)
        self.written = b""
        self._from, self._answers, self._limit = 0, dict(answers or {}), limit
        begin = [sys.executable, "-c", CONTROLLED] if controls else []
        self.process = subprocess.Popen(
            [*begin, *command],
            cwd=directory,
            env=dict(environment),
            stdin=self.inside,
            stdout=self.inside,
            stderr=self.inside,
            start_new_session=True,
        )

    def type(self, keys: bytes) -> None:
        """Press these keys; what is waited for afterwards is what comes afterwards."""
        self.forget()
        os.write(self.terminal, keys)

    def forget(self) -> None:
        """What was sent so far is not what is waited for."""
        self._from = len(self.written)

    def until(self, pattern: bytes) -> None:
        """Until this has come; `.` is a line's end too. That it ended before is an error."""
        wanted = re.compile(pattern, re.DOTALL)

        def came() -> bool:
            return wanted.search(self.written, self._from) is not None

        self.wait(lambda: came() or self.process.poll() is not None)
        while not came() and self._read(0.2):
            pass
        assert came(), f"it has ended: {self.written[-2000:]!r}"

    def wait(self, over: Callable[[], bool]) -> None:
        """Until it is so, and read meanwhile what the terminal is sent."""
        deadline = time.monotonic() + self._limit
        while not over():
            assert time.monotonic() < deadline, self.written[-2000:]
            self._read(0.1)

    def end(self) -> int:
        """Wait for the end of the command; how it ended. All that it wrote has been read then."""
        self.wait(lambda: self.process.poll() is not None)
        while self._read(0.2):
            pass
        return self.process.wait()

    def close(self) -> None:
        """Whatever still runs of it is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.terminal)
        os.close(self.inside)

    def _read(self, seconds: float) -> bool:
        """Read what there is, or comes within so many seconds, and answer; whether there was anything."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return False
        try:
            self.written += os.read(self.terminal, 1 << 16)
        except OSError:  # with who is controlled by it, it ends for everybody
            return False
        for asked in [asked for asked in self._answers if asked in self.written]:
            os.write(self.terminal, self._answers.pop(asked))
        return True
