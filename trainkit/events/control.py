"""Orders for a living trainer: a Unix socket in the run directory, one JSON line each way for each order.

`{"command": "rate", "argument": 0.5}` is answered with `{"ok": true, "detail": "…"}`; `orders.py` knows what there is.

Whoever may connect may command, so the socket belongs to its owner alone. The trainer takes orders between steps; the
client waits for its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.orders import COMMANDS, Name, Order, order

__all__ = ["COMMANDS", "LONGEST_LINE", "NAME", "Command", "Name", "Reply", "Server", "send"]

NAME = "control.sock"
#: Bytes of an order, most of it a prompt; whoever sends more, or takes longer to finish it, is not a client of ours.
LONGEST_LINE, PATIENCE = 1 << 16, 5.0
#: Clients that may be in the middle of their line at once.
MOST_CLIENTS = 64
#: Bytes of a socket's path that every system takes (Linux has room for 107, macOS for 103).
LONGEST_PATH = 100


class Reply(NamedTuple):
    ok: bool
    detail: str


@dataclass(frozen=True)
class Command:
    """An order and the client that waits for the answer. Answer each once."""

    order: Order
    _connection: socket.socket

    @property
    def command(self) -> Name:
        return self.order.command

    def reply(self, ok: bool, detail: str) -> None:
        """Answer. A client that has gone meanwhile is no error."""
        _answer(self._connection, ok, detail)


class Server:
    """Listens in the run directory; a thread of its own reads orders, the loop takes them when it likes.

    Raises:
        TrainkitError: the socket cannot be made, or a living trainer listens there.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / NAME
        self._orders: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._listener = _listen(run_directory)
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def take(self) -> list[Command]:
        """What has come since the last call, oldest first. Does not wait."""
        taken: list[Command] = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._orders.get_nowait())
        return taken

    def wait(self, timeout: float) -> list[Command]:
        """As `take`, but waits up to `timeout` seconds for the first."""
        try:
            return [self._orders.get(timeout=timeout), *self.take()]
        except queue.Empty:
            return []

    def close(self) -> None:
        """Remove the socket; orders that nobody took are answered with a refusal."""
        self._path.unlink(missing_ok=True)
        self._waker.close()
        self._thread.join()
        for command in self.take():
            command.reply(False, "the trainer is ending")

    def _serve(self) -> None:
        """One thread, never blocked by a client: partial lines wait in `clients` until they are whole or too old."""
        clients: dict[socket.socket, tuple[bytes, float]] = {}
        with selectors.DefaultSelector() as selector, self._listener, self._wake:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(PATIENCE / 5 if clients else None)}
                if self._wake in ready:
                    break
                if self._listener in ready:
                    for connection in _accept(self._listener, room=MOST_CLIENTS - len(clients)):
                        clients[connection] = (b"", time.monotonic() + PATIENCE)
                        selector.register(connection, selectors.EVENT_READ)
                for connection, (got, until) in list(clients.items()):
                    line = _read(connection, got) if connection in ready else got
                    if line is not None and b"\n" not in line and time.monotonic() < until:
                        clients[connection] = (line, until)
                        continue
                    del clients[connection]
                    selector.unregister(connection)
                    self._hand_over(connection, line)
            for connection in clients:
                connection.close()

    def _hand_over(self, connection: socket.socket, line: bytes | None) -> None:
        """A whole line becomes a command or a refusal; of anything else the connection is closed."""
        if line is None or b"\n" not in line:
            connection.close()
            return
        try:
            self._orders.put(Command(order(*_parse(line.partition(b"\n")[0])), connection))
        except TrainkitError as error:
            _answer(connection, False, error.problem)


def send(run_directory: Path, command: str, argument: str | float | None = None, *, timeout: float = 60.0) -> Reply:
    """Give an order to the trainer of a run and wait up to `timeout` seconds for its answer.

    Raises:
        TrainkitError: there is no such command, its argument is not right, no trainer lives there, it belongs to
            somebody else, or it does not answer in time.
    """
    line = _line(order(command, argument))
    gone = TrainkitError(
        "no trainer is at work on this run",
        where=str(run_directory),
        hint=f"go on with it: trainkit resume {run_directory}",
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            with _address(run_directory) as address:
                connection.connect(address)
            connection.sendall(line)
            answer = _receive(connection, until=time.monotonic() + timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise gone from None
        except PermissionError:
            raise TrainkitError(
                "this trainer takes orders from its owner only", where=str(run_directory / NAME)
            ) from None
        except TimeoutError:
            raise TrainkitError(
                f"no answer to '{command}' within {timeout:g} seconds",
                where=str(run_directory),
                hint="the trainer answers between steps: while it compiles, evaluates or is in a long step, that takes"
                f" time; it still has the order. Look at it: trainkit watch {run_directory}",
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


def _listen(run_directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(run_directory) as address:
            _remove_stale(run_directory / NAME, address)
            listener.bind(address)
        # Nobody can connect before listen(): there is no moment at which others may.
        (run_directory / NAME).chmod(0o600)
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise TrainkitError(
            f"the control socket cannot be made: {error.strerror}",
            where=str(run_directory / NAME),
            hint="the run directory must be writable and on a file system that holds Unix sockets",
        ) from error
    except TrainkitError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path, address: str) -> None:
    """Remove the socket of a trainer that died; one that answers belongs to a living one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink()
            return
    raise TrainkitError(
        "another trainer is at work on this run",
        where=str(path),
        hint=f"look at it: trainkit watch {path.parent}   or end it: trainkit send {path.parent} stop",
    )


@contextlib.contextmanager
def _address(run_directory: Path) -> Iterator[str]:
    """A path to the socket that is short enough for the system: a deep directory is named by a descriptor of it."""
    path = run_directory / NAME
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise TrainkitError(
            f"the path of the control socket has more than {LONGEST_PATH} bytes, which this system does not take",
            where=str(path),
            hint="choose a shorter run.directory or run.name, or work from a directory nearer to it",
        )
    descriptor = os.open(run_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def _accept(listener: socket.socket, *, room: int) -> list[socket.socket]:
    """Who is let in: one here, nobody if the one that knocked has gone again or there is no room."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return []
    if room <= 0:
        connection.close()
        return []
    connection.setblocking(False)
    return [connection]


def _read(connection: socket.socket, got: bytes) -> bytes | None:
    """`got` and what has come since; None where the client has gone or says too much."""
    try:
        more = connection.recv(LONGEST_LINE)
    except BlockingIOError:
        return got
    except ConnectionError:
        return None
    return got + more if more and len(got) + len(more) <= LONGEST_LINE else None


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


def _line(order: Order) -> bytes:
    """An order as it is sent; without what it has not."""
    told = {name: value for name, value in order._asdict().items() if value is not None}
    line = json.dumps(told, ensure_ascii=False).encode() + b"\n"
    if len(line) > LONGEST_LINE:
        raise TrainkitError(
            f"the prompt is too long: as an order it has {len(line):,} bytes, of which {LONGEST_LINE:,} are taken",
            hint="the model sees no more than its context length: send the end of it",
        )
    return line


def _parse(line: bytes) -> tuple[str, Any]:
    """Command and argument in an order; the line itself where it is none."""
    try:
        told = json.loads(line)
        return str(told["command"]), told.get("argument")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return line.decode(errors="replace"), None


def _answer(connection: socket.socket, ok: bool, detail: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(1)
        connection.sendall(json.dumps({"ok": ok, "detail": detail}).encode() + b"\n")
