"""Sending a command to a running trainer, over the socket of `control.py`."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import NamedTuple

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.commands import Command, order
from trainkit.events.control import LONGEST_LINE, NAME, address
from trainkit.events.log import last_end
from trainkit.events.process import lock_holder


def longer(run_directory: Path) -> str:
    """Return the command that continues a finished run."""
    return f"trainkit resume {run_directory} --set train.steps=… --raise-rate"


class Reply(NamedTuple):
    ok: bool
    detail: str


def send(run_directory: Path, command: str, argument: str | float | None = None, *, timeout: float = 60.0) -> Reply:
    """Send a command to the trainer of a run and wait up to `timeout` seconds for its answer.

    Raises:
        TrainkitError: there is no such command, its argument is not right, no trainer lives there, it belongs to
            somebody else, or it does not answer in time.
    """
    line = _line(order(command, argument))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            with address(run_directory) as there:
                connection.connect(there)
            connection.sendall(line)
            answer = _receive(connection, until=time.monotonic() + timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise _gone(run_directory) from None
        except PermissionError:
            raise TrainkitError(
                "only the user who started the run may send it commands",
                where=str(run_directory / NAME),
                hint="send the command as that user",
            ) from None
        except TimeoutError:
            raise TrainkitError(
                f"no answer to '{command}' within {timeout:g} seconds",
                where=str(run_directory),
                hint="the trainer answers between steps: while it compiles, evaluates or takes a long step, you"
                f" have to wait. It will still carry out the command. To watch it: trainkit watch {run_directory}",
                exit_code=FAILED,
            ) from None
        except (ConnectionResetError, BrokenPipeError):
            answer = b""
    try:
        said = json.loads(answer)
        return Reply(bool(said["ok"]), str(said["detail"]))
    except (ValueError, TypeError, KeyError):
        raise TrainkitError(
            f"the trainer ended before it answered '{command}'",
            where=str(run_directory),
            hint=f"what happened is in the log: trainkit watch {run_directory}",
            exit_code=FAILED,
        ) from None


def _gone(run_directory: Path) -> TrainkitError:
    """Return why nobody listens at the run's socket: its trainer has not opened it yet, or there is none."""
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
            f"to train it longer: {longer(run_directory)}"
            if finished
            else f"to continue it: trainkit resume {run_directory}"
        ),
    )


def _receive(connection: socket.socket, *, until: float) -> bytes:
    """A line, or what there is of it when the other side closes."""
    line = b""
    while b"\n" not in line:
        connection.settimeout(max(0.001, until - time.monotonic()))
        more = connection.recv(LONGEST_LINE)
        if not more:
            break
        line += more
    return line


def _line(order: Command) -> bytes:
    """Return a command as it is sent, without an argument where it has none."""
    told = {name: value for name, value in order._asdict().items() if value is not None}
    line = json.dumps(told, ensure_ascii=False).encode() + b"\n"
    if len(line) > LONGEST_LINE:
        raise TrainkitError(
            f"the prompt is too long: the command has {len(line):,} bytes, and the trainer accepts {LONGEST_LINE:,}",
            hint="send only the end of the prompt: the model sees no more than its context length",
        )
    return line
