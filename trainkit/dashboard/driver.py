"""Textual's terminal driver, but waiting without waking up, and safe when the terminal has gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from codecs import getincrementaldecoder
from io import TextIOWrapper
from threading import Event
from typing import IO, cast

from textual import constants
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

#: Seconds after which an escape with nothing behind it is the key alone: a little more than the parser waits for more.
ALONE = 1.25 * constants.ESCAPE_DELAY


class Terminal(LinuxDriver):
    """Textual's own looks ten times a second whether a key has been pressed, which is most of what a viewer with
    nothing to draw would cost; and where the terminal is closed, it waits for ever until what it draws is taken."""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert self._file is not None
        self._file = cast("TextIOWrapper", _Lasting(self._file))
        self._waking = self.exit_event = _Waking()

    def start_application_mode(self) -> None:
        again, before = self._key_thread is not None and self._key_thread.is_alive(), self.attrs_before
        if again:
            self.disable_input()  # it was stopped and continued from outside: one thread alone may read what is typed
        super().start_application_mode()
        if again:
            self.attrs_before = before  # those of the first time are the ones to be put back

    def run_input_thread(self) -> None:
        """Hand on what is typed, until `exit_event` is set or the terminal has gone."""
        parser, decode = XTermParser(self._debug), getincrementaldecoder("utf-8")(errors="replace").decode
        wait: float | None = None
        while not self.exit_event.is_set():
            ready, _, _ = select.select([self.fileno, self._waking.pipe], [], [], wait)
            wait = None
            if self.fileno in ready:
                if not (typed := _read_typed(self.fileno)):
                    os.kill(os.getpid(), signal.SIGHUP)  # as when it is told so by the kernel
                    return
                wait = ALONE
                if text := decode(typed):
                    for message in parser.feed(text):
                        self.process_message(message)
            for message in parser.tick():
                self.process_message(message)


class _Waking(Event):
    """One that can be waited for together with files: as long as it is set, there is something in its `pipe`."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe, self._inlet = os.pipe()

    def set(self) -> None:
        if not self.is_set():
            super().set()
            os.write(self._inlet, b"\n")

    def clear(self) -> None:
        if self.is_set():
            super().clear()
            os.read(self.pipe, 1)


class _Lasting:
    """A file that takes what nobody reads any more: the thread that writes goes on, and nobody has to wait for it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


def _read_typed(terminal: int) -> bytes:
    """What was typed; nothing where the terminal has gone."""
    try:
        return os.read(terminal, 1 << 12)
    except OSError:
        return b""
