"""Orders from a person: through the control socket and by signal."""

from __future__ import annotations

from typing import Literal

from trainkit.events.control import Command, Server
from trainkit.events.log import EventLog
from trainkit.train.stop import StopSignal

Order = Literal["evaluate", "save", "stop"]


class Orders:
    """Takes commands between steps, answers them, and writes each to the log."""

    def __init__(self, *, server: Server, signal: StopSignal, log: EventLog) -> None:
        self._server = server
        self._signal = signal
        self._log = log
        self.paused = False

    @property
    def interrupted(self) -> bool:
        """A signal has come: what can be cut short, should be."""
        return self._signal.received is not None

    def take(self, step: int) -> set[Order]:
        """What is to be done after this step. While the run is paused, waits until there is something."""
        orders = self._obey(self._server.take(), step)
        while self.paused and not orders and not self.interrupted:
            orders = self._obey(self._server.wait(timeout=0.2), step)
        return orders | {"stop"} if self.interrupted else orders

    def _obey(self, commands: list[Command], step: int) -> set[Order]:
        orders: set[Order] = set()
        for command in commands:
            match command.command:
                case "pause":
                    self.paused, detail = True, f"paused after step {step}"
                case "continue":
                    detail = f"going on after step {step}" if self.paused else "was not paused"
                    self.paused = False
                case "stop":
                    orders.add("stop")
                    detail = f"stopping after step {step} with a checkpoint"
                case "save":
                    orders.add("save")
                    detail = f"saving step {step}"
                case "evaluate":
                    orders.add("evaluate")
                    detail = f"evaluating step {step}"
                case other:
                    raise AssertionError(f"the control server let {other!r} through")
            self._log.write("control", step=step, command=command.command, detail=detail)
            command.reply(True, detail)
        return orders
