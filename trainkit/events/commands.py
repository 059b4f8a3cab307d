"""What may be ordered of a living trainer, and which orders in a log a resumed attempt has to repeat."""

from __future__ import annotations

import difflib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from trainkit.errors import TrainkitError
from trainkit.events.attempts import resumed_step
from trainkit.events.log import of_kinds
from trainkit.events.schema import FOREIGN
from trainkit.text import shorten

Name: TypeAlias = Literal["save", "pause", "continue", "evaluate", "stop", "sample", "rate", "decay"]
COMMANDS: tuple[Name, ...] = get_args(Name)
#: What goes with a command, as a person types it; the others go alone.
ARGUMENTS: dict[Name, str] = {"sample": "PROMPT", "rate": "FACTOR"}
#: Commands that change what is learned: without them a resumed run would end elsewhere.
CHANGING: tuple[Name, ...] = ("rate", "decay")


class Command(NamedTuple):
    """A command with its argument: a prompt, a factor above 0, or None."""

    command: Name
    argument: str | float | None = None


class IssuedCommand(NamedTuple):
    """An order that changed what is learned, the step after which it was given, and the attempt that heard it."""

    order: Command
    step: int
    attempt: int

    def fields(self) -> dict[str, Any]:
        """As plain JSON, for the `run_started` event."""
        return {**self.order._asdict(), "step": self.step, "attempt": self.attempt}


def order(command: str, argument: object = None) -> Command:
    """The order in these words. A factor may be a number or be written as one.

    Raises:
        TrainkitError: there is no such command, or its argument is missing, needless or wrong.
    """
    match command:
        case "save" | "pause" | "continue" | "evaluate" | "stop" | "decay":
            if argument is not None:
                raise TrainkitError(f"'{command}' takes no argument, found {shorten(repr(argument))}")
            return Command(command)
        case "sample":
            return Command(command, _prompt(argument))
        case "rate":
            return Command(command, _factor(argument))
    there_are = ", ".join(f"{name} {ARGUMENTS[name]}" if name in ARGUMENTS else name for name in COMMANDS)
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    raise TrainkitError(
        f"there is no command {command[:60]!r}; the commands are {there_are}",
        hint=f"did you mean '{near[0]}'?" if near else "",
    )


def issued_commands(run_directory: Path) -> list[IssuedCommand]:
    """Orders on the run's course that changed what is learned, carried out or yet to be repeated, by step.

    Of a course that was given up there are none but those that the next attempt said it would repeat. Of several of a
    command after one step the last counts, because none adds to the one before it.
    """
    course: dict[tuple[int, Name], IssuedCommand] = {}
    for event in of_kinds(run_directory, "run_started", "control"):
        told = [event]
        if event["type"] == "run_started":
            course = {key: found for key, found in course.items() if found.step <= resumed_step(event)}
            told = event.get("orders", [])  # logs from before there were such orders have none
        for found in filter(None, map(_given, told)):
            course[found.step, found.order.command] = found
    return sorted(course.values(), key=lambda found: found.step)


def _given(told: Mapping[str, Any]) -> IssuedCommand | None:
    """None for what changed nothing, and for what no trainer has written."""
    try:
        found = IssuedCommand(order(told["command"], told.get("argument")), int(told["step"]), int(told["attempt"]))
    except (TrainkitError, *FOREIGN):
        return None
    return found if found.order.command in CHANGING else None


def _prompt(argument: object) -> str:
    if not isinstance(argument, str):
        raise TrainkitError("'sample' needs a PROMPT: the text to be continued")
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise TrainkitError(f"the prompt is not UTF-8: {shorten(repr(argument))}") from None
    return argument


def _factor(argument: object) -> float:
    try:
        factor = float(argument) if isinstance(argument, str | float | int) else math.nan
        (kept,) = struct.unpack("f", struct.pack("f", factor))  # as the step has it
    except (ValueError, OverflowError):
        kept = math.nan
    if isinstance(argument, bool) or not 0 < kept < math.inf:
        found = "" if argument is None else f", found {shorten(repr(argument))}"
        raise TrainkitError(
            f"'rate' needs a FACTOR of the schedule's learning rate: a number above 0, such as 0.5{found}",
            hint="1 puts the learning rate back to what the schedule says",
        )
    return factor
