"""Commands of a person: from the control socket, by signal, and repeated from an earlier attempt."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trainkit.errors import TrainkitError
from trainkit.events.commands import Command, IssuedCommand
from trainkit.events.control import PendingCommand, Server
from trainkit.events.log import EventLog
from trainkit.train.live_schedule import LiveSchedule
from trainkit.train.signals import Signals


@dataclass
class RequestedActions:
    """What a person asks the loop to do after a step."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False
    prompts: list[str] = field(default_factory=list)
    """The model as it is continues them."""

    def __bool__(self) -> bool:
        return self.evaluate or self.save or self.stop or bool(self.prompts)


class Commands:
    """Takes commands between steps, answers them, and logs each one that is carried out."""

    def __init__(
        self,
        *,
        server: Server,
        signal: Signals,
        log: EventLog,
        schedule: LiveSchedule,
        repeats: Iterable[IssuedCommand] = (),
        before: Commands | None = None,
    ) -> None:
        """`repeats`, in the order of their steps, are carried out again at these steps. `before` took the commands of
        this process until memory ran out: its pause continues, and what it promised is still to be done.
        """
        self._server = server
        self._signal = signal
        self._log = log
        self._schedule = schedule
        self._repeats = deque(repeats)
        self._back: RequestedActions = before._back if before else RequestedActions()
        self.paused: bool = before.paused if before else False

    @property
    def interrupted(self) -> bool:
        """Whether a signal has come: work that can be cut short should be."""
        return self._signal.received is not None

    def take(
        self, step: int, *, meanwhile: Callable[[], None], aside: Callable[[], AbstractContextManager[None]]
    ) -> RequestedActions:
        """Return what is to be done after this step. While the run is paused, wait within `aside()` until there is
        something to do, and call `meanwhile` now and then.
        """
        wanted, self._back = self._back, RequestedActions()
        self.repeat(step)
        self._answer(self._server.take(), step, wanted)
        if self.paused and not wanted and not self.interrupted:
            with aside():
                while self.paused and not wanted and not self.interrupted:
                    self._answer(self._server.wait(timeout=0.2), step, wanted)
                    meanwhile()
        wanted.stop |= self.interrupted
        return wanted

    def put_back(self, wanted: RequestedActions) -> None:
        """Let the next `take` return what was promised and could not be done."""
        self._back = wanted

    def until_stopped(self, busy: str, *, patience: float) -> Callable[[], bool]:
        """Return a function that says, after training has ended, whether the process is to end now.

        It is after a command to stop; after another signal than the one that ended training; and, if that was a
        SIGTERM, `patience` seconds from now. Other commands are refused: the trainer is `busy`.
        """
        heard = min(self._signal.count, 1)
        until = time.monotonic() + patience if self._signal.received == signal.SIGTERM else math.inf

        def is_stopped() -> bool:
            stopped = False
            for pending in self._server.take():
                stopped |= (stop := pending.command.name == "stop")
                pending.reply(stop, f"no longer {busy}" if stop else f"training has ended: the trainer is {busy}")
            return stopped or self._signal.count > heard or time.monotonic() >= until

        return is_stopped

    def repeat(self, step: int) -> None:
        """Carry out again the commands that an earlier attempt was given after this step."""
        while self._repeats and self._repeats[0].step <= step:
            given = self._repeats.popleft()
            try:
                self._carry_out(given.command, step, RequestedActions(), but=f", as in attempt {given.attempt}")
            except TrainkitError as refused:
                message = f"'{given.command.name}' of attempt {given.attempt} was not repeated: {refused.problem}"
                self._log.write("log", step=step, level="warning", message=message)

    def _answer(self, commands: list[PendingCommand], step: int, wanted: RequestedActions) -> None:
        for pending in commands:
            try:
                pending.reply(True, self._carry_out(pending.command, step, wanted))
            except TrainkitError as refused:
                pending.reply(False, refused.problem)

    def _carry_out(self, command: Command, step: int, wanted: RequestedActions, *, but: str = "") -> str:
        """Carry out a command, or note it as wanted, and log it; return in words what was done."""
        detail, total = self._done(command, step, wanted) + but, None
        if command.name == "decay":
            total = self._schedule.total_steps
        self._log.write("control", step=step, detail=detail, total_steps=total, **command.fields())
        return detail

    def _done(self, command: Command, step: int, wanted: RequestedActions) -> str:
        match command:
            case Command("pause"):
                self.paused = True
                return f"paused after step {step}"
            case Command("continue"):
                was, self.paused = self.paused, False
                return f"continuing after step {step}" if was else "was not paused"
            case Command("stop"):
                wanted.stop = True
                return f"stopping after step {step} with a checkpoint"
            case Command("save"):
                wanted.save = True
                return f"saving step {step}"
            case Command("evaluate"):
                wanted.evaluate = True
                return f"evaluating step {step}"
            case Command("sample", str(prompt)):
                wanted.prompts.append(prompt)
                return f"sampling step {step}"
            case Command("rate", float(factor)):
                return self._schedule.change_rate(factor, step=step)
            case Command("decay"):
                return self._schedule.begin_decay(step=step)
        raise AssertionError(f"{command} is not a command")
