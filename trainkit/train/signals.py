"""SIGTERM and SIGINT: finish the step, save, say so in the exit code."""

from __future__ import annotations

import signal
from types import FrameType

from trainkit.errors import INTERRUPTED, STOPPED_EARLY


class StopBeforeTraining(BaseException):
    """A signal came while nothing had been trained yet: there is no step to finish and nothing to save."""


class Signals:
    """Remembers the signal that asked for an end. A second SIGINT ends at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.count = 0
        #: Whether the preparations are over, so that steps may have been trained.
        self.training = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def training_begins(self) -> None:
        """From here on a signal is obeyed between steps; before, it ends the preparations at once.

        Raises:
            StopBeforeTraining: one has come already.
        """
        self.training = True
        if self.received:
            raise StopBeforeTraining

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.received == signal.SIGINT else STOPPED_EARLY

    def _receive(self, number: int, _: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = number
        self.count += 1
        if again:
            signal.default_int_handler(number, _)
        if not self.training:
            raise StopBeforeTraining
