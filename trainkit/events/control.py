"""Commands for a running trainer: a Unix socket in the run directory, one JSON line each way for each command.

`{"command": "rate", "argument": 0.5}` is answered with `{"ok": true, "detail": "…"}`; `commands.py` lists them.

Whoever may connect may command, so the socket belongs to its owner alone. The trainer, whose end this is, takes
commands between steps; `client.py` waits for its answer.
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
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.events.commands import Command, Name, order

NAME = "control.sock"
#: Bytes of an order, most of it a prompt; whoever sends more, or takes longer to finish it, is not a client of ours.
LONGEST_LINE, PATIENCE = 1 << 16, 5.0
#: Clients that may be in the middle of their line at once.
MOST_CLIENTS = 64
#: Bytes of a socket's path that every system takes (Linux has room for 107, macOS for 103).
LONGEST_PATH = 100


@dataclass(frozen=True)
class PendingCommand:
    """An order and the client that waits for the answer. Answer each once."""

    order: Command
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
        self._orders: queue.SimpleQueue[PendingCommand] = queue.SimpleQueue()
        self._listener = _listen(run_directory)
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def take(self) -> list[PendingCommand]:
        """What has come since the last call, oldest first. Does not wait."""
        taken: list[PendingCommand] = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._orders.get_nowait())
        return taken

    def wait(self, timeout: float) -> list[PendingCommand]:
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
            command.reply(False, "the trainer is shutting down")

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
            self._orders.put(PendingCommand(order(*_parse(line.partition(b"\n")[0])), connection))
        except TrainkitError as error:
            _answer(connection, False, error.problem)


def _listen(run_directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(run_directory) as there:
            _remove_stale(run_directory / NAME, there)
            listener.bind(there)
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


def _remove_stale(path: Path, there: str) -> None:
    """Remove the socket of a trainer that died; one that answers belongs to a living one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(there)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink()
            return
    raise TrainkitError(
        "another process is training this run",
        where=str(path),
        hint=f"to watch it: trainkit watch {path.parent}   to stop it: trainkit send {path.parent} stop",
    )


@contextlib.contextmanager
def address(run_directory: Path) -> Iterator[str]:
    """A path to the socket that is short enough for the system: a deep directory is named by a descriptor of it.

    Raises:
        TrainkitError: it is too long, and the system has no such names.
    """
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
