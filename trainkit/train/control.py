"""Commands during a run: from the control socket, by signal, or repeated from an earlier attempt."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np

from trainkit.errors import TrainkitError
from trainkit.events.commands import FINISH, Command, IssuedCommand
from trainkit.events.control import PendingCommand, Server
from trainkit.events.log import EventLog
from trainkit.parallel import hosts
from trainkit.recipe.sections.schedule_spec import NEVER, Schedule
from trainkit.train.finish import FinishInTime
from trainkit.train.shared import ReceivedCommand, SharedServer, SharedSignals
from trainkit.train.signals import Signals
from trainkit.train.state import Live, State


class LiveSchedule:
    """The learning-rate schedule with the changes of commands: the host's copy of `State.live`.

    With it the host need not ask the device. Commands change it, and the loop puts it into the state.
    """

    def __init__(self, schedule: Schedule, *, steps: int, live: Live) -> None:
        """`steps` are the plan's."""
        self._schedule, self._steps = schedule, steps
        self._rate_factor, self._decay_start = float(live.rate_factor), int(live.decay_start)
        #: None for runs that do not end at a time
        self._decay_end = None if live.decay_end is None else int(live.decay_end)
        self._changed = False

    @property
    def total_steps(self) -> int:
        """Return the last step of the run, which a command may have moved."""
        if self._decay_end is not None:
            return min(self._decay_end, self._steps)
        return self._schedule.last_step(self._steps, decay_start=self._decay_start)

    def holds(self, command: Command, *, step: int) -> bool:
        """Return whether the schedule already is as this command, given after `step`, would make it."""
        if command.name == "decay":
            return self._decay_start == step
        if command.name == FINISH:
            return self._decay_end == command.argument
        return self._rate_factor == np.float32(command.argument)

    def change_rate(self, factor: float, *, step: int) -> str:
        """Multiply the schedule's rate by `factor`, which replaces an earlier factor. Return a message."""
        self._rate_factor, self._changed = float(np.float32(factor)), True
        return f"the learning rate is {factor:g} x the schedule's from step {step + 1} on"

    def begin_decay(self, *, step: int) -> str:
        """Let the decay begin after `step`, and the run end with it. Return a message.

        Raises:
            TrainkitError: the schedule has no decay, the decay has begun, or the warm-up is not over.
        """
        schedule = self._schedule
        if self._decay_end is not None:
            raise TrainkitError("this run ends at a given time, for which it begins the decay itself")
        begins = schedule.decay_start(self._steps, ordered=self._decay_start)
        if begins is None:
            raise TrainkitError(
                f"there is no decay to begin: schedule.type is '{schedule.type}', and only that of 'wsd' can be moved"
            )
        warm = schedule.warmup_steps(self._steps)
        if step >= begins:
            raise TrainkitError(f"the decay has begun already, after step {begins}; it ends at {self.total_steps}")
        if step < warm:
            raise TrainkitError(f"the learning rate is still warming up: the decay can begin after step {warm}")
        self._decay_start, self._changed = step, True
        return f"the decay begins after step {step}; the run ends with it, at step {self.total_steps}"

    def end_at(self, end: int, *, step: int) -> str:
        """Let a run that ends in time end at step `end`, as decided after `step`. Return a message."""
        planned_start = self._schedule.decay_start(self._steps, ordered=NEVER)
        assert self._decay_end is not None and planned_start is not None
        is_first = self._decay_end == NEVER
        before = (planned_start, self._steps) if is_first else (self._decay_start, self._decay_end)
        self._decay_start = self._schedule.decay_until(end, step=step, before=before)
        self._decay_end, self._changed = end, True
        begins = f"; the decay begins after step {self._decay_start}" if self._decay_start >= step else ""
        return f"to finish in time, the run ends at step {end}{begins}"

    def put_into(self, state: State) -> State:
        """Return the state with the changes since the last call. Does not wait."""
        if not self._changed:
            return state
        self._changed = False
        end = None if self._decay_end is None else np.int32(self._decay_end)
        live = Live(
            jax.device_put(np.float32(self._rate_factor), state.live.rate_factor.sharding),
            jax.device_put(np.int32(self._decay_start), state.live.decay_start.sharding),
            None if end is None else jax.device_put(end, state.live.decay_start.sharding),
        )
        return eqx.tree_at(lambda state: state.live, state, live)


@dataclass
class RequestedActions:
    """What commands ask the loop to do after a step."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False
    prompts: list[str] = field(default_factory=list)
    """Prompts for the model to continue."""

    def __bool__(self) -> bool:
        return self.evaluate or self.save or self.stop or bool(self.prompts)


class Commands:
    """Takes commands between steps, answers them, and logs each one that it carries out."""

    def __init__(
        self,
        *,
        server: Server | SharedServer,
        signal: Signals | SharedSignals,
        log: EventLog,
        schedule: LiveSchedule,
        repeats: Iterable[IssuedCommand] = (),
        before: Commands | None = None,
        finish: FinishInTime | None = None,
    ) -> None:
        """`repeats`, in the order of their steps, are carried out again at these steps. `before` took this process's
        commands until memory ran out: its pause and its unfinished actions carry over.
        """
        self._server = server
        self._signal = signal
        self._log = log
        self._schedule = schedule
        self._repeats = deque(repeats)
        self._finish = finish
        self._unfinished: RequestedActions = before._unfinished if before else RequestedActions()
        self.paused: bool = before.paused if before else False

    @property
    def interrupted(self) -> bool:
        """Return whether a signal has asked the run to end, so that long work should be cut short."""
        return self._signal.received is not None

    def take(
        self, step: int, *, meanwhile: Callable[[], None], aside: Callable[[], AbstractContextManager[None]]
    ) -> RequestedActions:
        """Return what commands ask for after this step.

        While the run is paused, wait within `aside()` for the next command, and call `meanwhile` repeatedly.
        """
        wanted, self._unfinished = self._unfinished, RequestedActions()
        self.repeat(step)
        self._answer(self._server.take(), step, wanted)
        self._finish_in_time(step)
        if self.paused and not wanted and not self.interrupted:
            with aside():
                while self.paused and not wanted and not self.interrupted:
                    self._answer(self._server.wait(timeout=0.2), step, wanted)
                    meanwhile()
            if self._finish:
                self._finish.interrupt()
        wanted.stop |= self.interrupted
        return wanted

    def put_back(self, wanted: RequestedActions) -> None:
        """Let the next `take` return actions that were confirmed but could not be done."""
        self._unfinished = wanted

    def until_stopped(self, busy: str, *, patience: float) -> Callable[[], bool]:
        """Return a function that says, after training, whether the process should end without further work.

        That is so after a stop command, after a further signal, and `patience` seconds from now if a SIGTERM ended
        training. Other commands are refused: the trainer is `busy`.
        """
        handled = min(self._signal.count, 1)
        until = time.monotonic() + patience if self._signal.received == signal.SIGTERM else math.inf

        def is_stopped() -> bool:
            stopped = False
            for pending in self._server.take():
                stopped |= (stop := pending.command.name == "stop")
                pending.reply(stop, f"no longer {busy}" if stop else f"training has ended: the trainer is {busy}")
            return stopped or self._signal.count > handled or time.monotonic() >= until

        return is_stopped

    def repeat(self, step: int) -> None:
        """Carry out again the commands that an earlier attempt received up to this step."""
        while self._repeats and self._repeats[0].step <= step:
            issued = self._repeats.popleft()
            try:
                self._carry_out(issued.command, step, RequestedActions(), suffix=f", as in attempt {issued.attempt}")
            except TrainkitError as refused:
                message = f"'{issued.command.name}' of attempt {issued.attempt} was not repeated: {refused.problem}"
                self._log.write("log", step=step, level="warning", message=message)

    def _finish_in_time(self, step: int) -> None:
        """Move the end of a run that ends at a time, as the measured speed demands."""
        if (finish := self._finish) is None:
            return
        end = hosts.from_first(lambda: finish.after(step, end=self._schedule.total_steps))
        if end is not None and not any(issued.command.name == FINISH for issued in self._repeats):
            self._carry_out(Command(FINISH, end), step, RequestedActions())

    def _answer(
        self, commands: Sequence[PendingCommand | ReceivedCommand], step: int, wanted: RequestedActions
    ) -> None:
        for pending in commands:
            try:
                pending.reply(True, self._carry_out(pending.command, step, wanted))
            except TrainkitError as refused:
                pending.reply(False, refused.problem)

    def _carry_out(self, command: Command, step: int, wanted: RequestedActions, *, suffix: str = "") -> str:
        """Carry out a command, or add it to the wanted actions, and log it. Return a message."""
        detail, total = self._act(command, step, wanted) + suffix, None
        if command.name in ("decay", FINISH):
            total = self._schedule.total_steps
        self._log.write("control", step=step, detail=detail, total_steps=total, **command.fields())
        return detail

    def _act(self, command: Command, step: int, wanted: RequestedActions) -> str:
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
            case Command("finish", int(end)):
                return self._schedule.end_at(end, step=step)
        raise AssertionError(f"{command} is not a command")
