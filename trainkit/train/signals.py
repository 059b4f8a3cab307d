"""SIGTERM and SIGINT: the run finishes its step, saves, and ends with an exit code that says so."""

from __future__ import annotations

import signal
from types import FrameType

from trainkit.errors import INTERRUPTED, STOPPED_EARLY


class StopBeforeTraining(BaseException):
    """A signal came before the first step: there is nothing to finish or to save."""


class Signals:
    """Remembers the signal that asks the run to end. A second SIGINT ends it at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.count = 0
        #: Whether preparations are over, so that steps may have been trained.
        self.training = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def training_begins(self) -> None:
        """From now on handle signals between steps. Until now they ended the preparations at once.

        Raises:
            StopBeforeTraining: a signal has come already.
        """
        self.training = True
        if self.received:
            raise StopBeforeTraining

    @property
    def exit_code(self) -> int:
        """Return the exit code for the signal that was received."""
        return INTERRUPTED if self.received == signal.SIGINT else STOPPED_EARLY

    def _receive(self, number: int, _: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = number
        self.count += 1
        if again:
            signal.default_int_handler(number, _)
        if not self.training:
            raise StopBeforeTraining
