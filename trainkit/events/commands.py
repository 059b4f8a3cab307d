"""Commands to a living trainer: which there are, sending one, and which of them a resumed attempt repeats.

A command and its answer are one JSON line each over a Unix socket in the run directory: `{"command": "rate",
"argument": 0.5}` is answered with `{"ok": true, "detail": "…"}`. The trainer's end of the socket is `control.py`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.attempts import lock_holder, resumed_step
from trainkit.events.schema import FOREIGN
from trainkit.events.tail import last_end, of_kinds
from trainkit.printer import quote
from trainkit.text import shorten

#: The socket's file in the run directory.
SOCKET = "control.sock"
#: The most bytes of a command, most of them a prompt.
LONGEST_LINE = 1 << 16
#: Bytes of a socket's path that every system accepts (Linux has room for 107, macOS for 103).
LONGEST_PATH = 100

Name: TypeAlias = Literal["save", "pause", "continue", "evaluate", "stop", "sample", "rate", "decay", "finish"]
#: The order of the trainer to itself to end at a step, so that it finishes in time.
FINISH: Name = "finish"
COMMANDS: tuple[Name, ...] = tuple(name for name in get_args(Name) if name != FINISH)
#: The argument of a command, as a person types it; the other commands have none.
ARGUMENTS: dict[Name, str] = {"sample": "PROMPT", "rate": "FACTOR"}
#: The least and the greatest factor of the learning rate.
FACTORS = (1e-6, 1e3)
#: Commands that change what is learned: without them a resumed run would end elsewhere.
CHANGING: tuple[Name, ...] = ("rate", "decay", FINISH)


class Command(NamedTuple):
    """A command with its argument: a prompt, a factor within `FACTORS`, the step at which to end, or None."""

    name: Name
    argument: str | float | None = None

    def fields(self) -> dict[str, Any]:
        """Return the command as plain JSON, as it is sent and logged."""
        return {"command": self.name, "argument": self.argument}


class IssuedCommand(NamedTuple):
    """A command that changed what is learned, the step after which it came, and the attempt that received it."""

    command: Command
    step: int
    attempt: int

    def fields(self) -> dict[str, Any]:
        """Return the command as plain JSON, for the `run_started` event."""
        return {**self.command.fields(), "step": self.step, "attempt": self.attempt}


class Reply(NamedTuple):
    """A trainer's answer to a command: whether it carries it out, and what it does, or why not."""

    ok: bool
    detail: str


def parse_command(name: str, argument: object = None) -> Command:
    """Return the command of this name. A factor may be a number or a text that holds one.

    Raises:
        TrainkitError: there is no such command, or its argument is missing, superfluous or wrong.
    """
    match name:
        case "save" | "pause" | "continue" | "evaluate" | "stop" | "decay":
            if argument is not None:
                raise TrainkitError(f"'{name}' takes no argument, found {shorten(repr(argument))}")
            return Command(name)
        case "sample":
            return Command(name, _prompt(argument))
        case "rate":
            return Command(name, _factor(argument))
    listed = ", ".join(f"{known} {ARGUMENTS[known]}" if known in ARGUMENTS else known for known in COMMANDS)
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    raise TrainkitError(
        f"there is no command {name[:60]!r}; the commands are {listed}",
        hint=f"did you mean '{near[0]}'?" if near else "",
    )


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
    except (ValueError, OverflowError):
        factor = math.nan
    least, greatest = FACTORS
    if isinstance(argument, bool) or not least <= factor <= greatest:
        found = "" if argument is None else f", found {shorten(repr(argument))}"
        raise TrainkitError(
            f"'rate' needs a FACTOR of the schedule's learning rate: a number from {least:g} to {greatest:,.0f}, such"
            f" as 0.5{found}",
            hint="1 restores the learning rate of the schedule",
        )
    return factor


def issued_commands(run_directory: Path) -> list[IssuedCommand]:
    """Return the commands that changed what the run has learned, carried out or yet to be repeated, by step.

    Commands beyond the step from which an attempt resumed count only if that attempt said it would repeat them, and
    those at that step unless it said that it omits them. If the same command came several times after one step, the
    last counts.
    """
    issued: dict[tuple[int, Name], IssuedCommand] = {}
    for event in of_kinds(run_directory, "run_started", "control"):
        written = [event]
        if event["type"] == "run_started":
            issued = {key: known for key, known in issued.items() if known.step <= resumed_step(event)}
            for omitted in filter(None, map(_command_in, event.get("forgotten", []))):
                issued.pop((omitted.step, omitted.command.name), None)
            written = event.get("orders", [])  # early logs do not have this field
        for known in filter(None, map(_command_in, written)):
            issued[known.step, known.command.name] = known
    return sorted(issued.values(), key=lambda known: known.step)


def _command_in(fields: Mapping[str, Any]) -> IssuedCommand | None:
    """Return the command in these fields; None if it changed nothing, or if no trainer wrote them."""
    try:
        name: Any = fields["command"]
        argument: Any = fields.get("argument")
        match name:
            case "finish":
                command = Command(FINISH, int(argument))
            case "rate" if not isinstance(argument, bool) and 0 < float(argument) < math.inf:
                command = Command("rate", float(argument))  # an earlier version had no `FACTORS`
            case _:
                command = parse_command(name, argument)
        return IssuedCommand(command, int(fields["step"]), int(fields["attempt"])) if command.name in CHANGING else None
    except (TrainkitError, *FOREIGN):
        return None


def send(run_directory: Path, name: str, argument: str | float | None = None, *, timeout: float = 60.0) -> Reply:
    """Send a command to the trainer of a run and return its answer, which may take up to `timeout` seconds.

    Raises:
        TrainkitError: the command does not exist or its argument is wrong; no trainer runs, it belongs to another user,
            or it does not answer in time.
    """
    line = _line(parse_command(name, argument))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            with address(run_directory) as path:
                _connect(connection, path, until=time.monotonic() + timeout)
            with contextlib.suppress(BrokenPipeError):  # refused before it was sent: the reason can still be read
                connection.sendall(line)
            answer = _receive(connection, until=time.monotonic() + timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise _no_listener(run_directory) from None
        except PermissionError:
            raise TrainkitError(
                "only the user who started the run may send it commands",
                where=str(run_directory / SOCKET),
                hint="send the command as that user",
            ) from None
        except TimeoutError:
            raise TrainkitError(
                f"no answer to '{name}' within {timeout:g} seconds",
                where=str(run_directory),
                hint="the trainer answers between steps: while it compiles, evaluates or takes a long step, you"
                " have to wait. It will still carry out the command. To watch it:"
                f" trainkit watch {quote(run_directory)}",
                exit_code=FAILED,
            ) from None
        except ConnectionResetError:
            answer = b""
    try:
        fields = json.loads(answer)
        return Reply(bool(fields["ok"]), str(fields["detail"]))
    except (ValueError, TypeError, KeyError):
        raise TrainkitError(
            f"the trainer ended before it answered '{name}'",
            where=str(run_directory),
            hint=f"the log says what happened: trainkit watch {quote(run_directory)}",
            exit_code=FAILED,
        ) from None


def how_to_train_longer(run_directory: Path) -> str:
    """Return the shell command that continues a finished run."""
    return f"trainkit resume {quote(run_directory)} --set train.steps=… --raise-rate"


@contextlib.contextmanager
def address(run_directory: Path) -> Iterator[str]:
    """Yield a path to the socket that is short enough for the system: a deep directory is named by its descriptor.

    Raises:
        TrainkitError: the path is too long, and the system has no names for descriptors.
    """
    path = run_directory / SOCKET
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise TrainkitError(
            f"the path of the control socket has more than {LONGEST_PATH} bytes, which this system does not accept",
            where=str(path),
            hint="choose a shorter run.directory or run.name, or start trainkit in a directory closer to it",
        )
    descriptor = os.open(run_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def _no_listener(run_directory: Path) -> TrainkitError:
    """Return why nobody listens at the run's socket: its trainer has not opened it yet, or no trainer runs."""
    if (trainer := lock_holder(run_directory)) is not None:
        return TrainkitError(
            f"the trainer (process {trainer}) takes no commands yet: it is caching or compiling",
            where=str(run_directory),
            hint=f"try again once training begins, or stop the trainer: kill {trainer}",
        )
    finished = last_end(run_directory) == "finished"
    return TrainkitError(
        "no process is training this run" + (": it is finished" if finished else ""),
        where=str(run_directory),
        hint=(
            f"to train it longer: {how_to_train_longer(run_directory)}"
            if finished
            else f"to continue it: trainkit resume {quote(run_directory)}"
        ),
    )


def _connect(connection: socket.socket, path: str, *, until: float) -> None:
    """Connect, and wait for room where too many are waiting to be accepted. Raises OSError."""
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(0.02)


def _receive(connection: socket.socket, *, until: float) -> bytes:
    """Return a line, or the part of it that arrived before the other side closed."""
    line = b""
    while b"\n" not in line:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(LONGEST_LINE)
        if not more:
            break
        line += more
    return line


def _line(command: Command) -> bytes:
    """Return a command as it is sent, without an argument if it has none."""
    fields = {name: value for name, value in command.fields().items() if value is not None}
    line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    if len(line) > LONGEST_LINE:
        raise TrainkitError(
            f"the prompt is too long: the command has {len(line):,} bytes, and the trainer accepts {LONGEST_LINE:,}",
            hint="send only the end of the prompt: the model sees no more than its context length",
        )
    return line
