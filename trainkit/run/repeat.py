"""Orders that an earlier attempt obeyed beyond the step from which this one goes on: they are carried out again."""

from __future__ import annotations

from trainkit.events.commands import IssuedCommand
from trainkit.events.log import EventLog
from trainkit.run.start import Start
from trainkit.train.live_schedule import LiveSchedule


def commands_to_repeat(start: Start, course: LiveSchedule, *, first: int, log: EventLog) -> list[IssuedCommand]:
    """By step; what they are is told in the log. `first` is the step of the state with which the attempt begins.

    Orders that came after that very step may be in its checkpoint or not: it may have been written while they came.
    """
    repeats = [
        given
        for given in start.repeated(after=first - 1)
        if given.step > first or not course.holds(given.order, step=first)
    ]
    if repeats:
        told = ", ".join(_told(given) for given in repeats)
        message = f"orders of earlier attempts are repeated: {told}; not to, trainkit resume RUN --forget-orders"
        log.write("log", step=log.step, level="info", message=message)
    return repeats


def _told(given: IssuedCommand) -> str:
    argument = "" if given.order.argument is None else f" {given.order.argument}"
    return f"{given.order.command}{argument} after step {given.step}"
