"""Commands and signals that all processes of a run handle at the same step.

They are those that reach the first process; the others pass their signals on to it. With one process, these classes
change nothing.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from trainkit.events.commands import Command
from trainkit.events.control import PendingCommand, Server
from trainkit.parallel import hosts
from trainkit.train.signals import Signals

#: Seconds between two times that the first process asks for signals to the others.
_LOOK_EVERY = 1.0


class ReceivedCommand(NamedTuple):
    """A command that the first process has received and answers."""

    command: Command

    def reply(self, ok: bool, detail: str) -> None:
        """Do nothing: the first process replies to the client."""


class SharedServer:
    """The control server of the first process. Every process takes its commands."""

    def __init__(self, server: Server | None) -> None:
        """`server` is None in all processes but the first."""
        self._server = server

    def take(self) -> list[PendingCommand] | list[ReceivedCommand]:
        """Return the commands since the last call, as `Server.take` does."""
        return self._share(self._server.take() if self._server else [])

    def wait(self, timeout: float) -> list[PendingCommand] | list[ReceivedCommand]:
        """Return the commands, as `Server.wait` does."""
        return self._share(self._server.wait(timeout) if self._server else [])

    def close(self) -> None:
        """Close the server."""
        if self._server:
            self._server.close()

    def _share(self, pending: list[PendingCommand]) -> list[PendingCommand] | list[ReceivedCommand]:
        commands = hosts.from_first(lambda: [each.command for each in pending])
        return pending if self._server else [ReceivedCommand(command) for command in commands]


class SharedSignals:
    """The signal that asks the run to end, for every process at the same step."""

    def __init__(self, own: Signals) -> None:
        self._own = own
        self._passed_on, self._looked = False, 0.0

    @property
    def received(self) -> int | None:
        """Return the signal that any process received. All processes must read this equally often."""
        if not hosts.is_first() and self._own.received and not self._passed_on:
            self._passed_on = True
            hosts.send_to_first(str(self._own.received))
        return hosts.from_first(self._of_any)

    @property
    def count(self) -> int:
        """Return the number of signals to this process."""
        return self._own.count

    def _of_any(self) -> int | None:
        if self._own.received is None and hosts.count() > 1 and time.monotonic() - self._looked > _LOOK_EVERY:
            self._looked = time.monotonic()
            if messages := hosts.messages_from_others():
                self._own.received = int(messages[0])
        return self._own.received
