"""SIGTERM, SIGINT and SIGHUP: the run finishes its step, saves, and ends with an exit code that says so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from trainkit.errors import INTERRUPTED, STOPPED_EARLY

#: The signals that ask a run to end. SIGHUP comes when the terminal of a trainer in the foreground is closed.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The name of the thread that compiles, for which nobody waits after a signal.
COMPILING = "compile"
#: Seconds after which a signal comes again whose exception was ignored.
_AGAIN_AFTER = 0.05
#: Seconds after a Ctrl-C in which an error is taken for its consequence.
_SOON = 2.0


class StopBeforeTraining(BaseException):
    """A signal, the first argument, came before the first step: there is nothing to finish or to save."""


class Signals:
    """Remembers the signal that asks the run to end. A second SIGINT ends it at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.count = 0
        #: Whether preparations are over, so that steps may have been trained.
        self.training = False
        #: Whether the attempt has ended, so that a signal can change nothing.
        self.over = False
        self._deferring = self._interrupted_twice = False
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._receive)

    def release_signals(self) -> None:
        """Let the signals come that `hold_signals` has held back. Raises StopBeforeTraining if there is one."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def training_begins(self) -> None:
        """From now on handle signals between steps. Until now they ended the preparations at once.

        Raises:
            StopBeforeTraining: a signal has come already.
        """
        self.training = True
        if self.received:
            raise StopBeforeTraining(self.received)

    @contextlib.contextmanager
    def defer(self) -> Iterator[None]:
        """Handle a signal that comes within the block at its end: what it would interrupt cannot be interrupted."""
        before, self._deferring = self.count, True
        try:
            yield
        finally:
            self._deferring = False
        if self.count > before:
            self._act()

    @property
    def exit_code(self) -> int:
        """Return the exit code for the signal that was received."""
        return INTERRUPTED if self.received == signal.SIGINT else STOPPED_EARLY

    @property
    def ends_preparations(self) -> bool:
        """Return whether a signal came before the first step, so that any error may be a consequence of it."""
        return self.received is not None and not self.training

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._interrupted_twice |= self.received == number == signal.SIGINT
        self.received = number
        self.count += 1
        if not self._deferring:
            self._act()

    def _act(self) -> None:
        if self.over:
            return
        if self._interrupted_twice:
            raise KeyboardInterrupt
        if not self.training:
            raise StopBeforeTraining(self.received)


class Interrupts:
    """Raises KeyboardInterrupt at each Ctrl-C, as Python does, and remembers when it did."""

    def __init__(self) -> None:
        self._last: float | None = None
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGINT, self._interrupt)

    def caused_error(self) -> bool:
        """Return whether an error that ends a command now is due to a Ctrl-C: C code, such as that of an import,
        answers a KeyboardInterrupt with an error of its own."""
        return self._last is not None and time.monotonic() - self._last < _SOON

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._last = time.monotonic()
        raise KeyboardInterrupt


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Hold back the signals that ask a run to end, until this block or one within it ends, or `Signals` releases them.

    So no signal comes between the creation of a run and its attempt. A process that is started in the block holds them
    back too: its attempt handles even a signal that comes while its interpreter starts.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def repeat_ignored(unraisable: sys.UnraisableHookArgs) -> None:
    """Let a signal come again whose exception Python ignored, because it came in a destructor or in garbage collection.

    For `sys.unraisablehook`.
    """
    if isinstance(unraisable.exc_value, KeyboardInterrupt | StopBeforeTraining):
        (number,) = unraisable.exc_value.args or (signal.SIGINT,)
        main = threading.main_thread().ident
        again = threading.Timer(_AGAIN_AFTER, signal.pthread_kill, (main, number))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def leave(code: int) -> NoReturn:
    """End the process with this exit code, which no signal changes any more.

    If a compilation still runs, the interpreter is not torn down: XLA would call into it, and abort.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if any(thread.name == COMPILING for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
