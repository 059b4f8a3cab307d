"""The trainer's end of the control socket: it receives commands in the run directory and answers them.

Whoever may connect may command, so the socket belongs to its owner alone. `commands.py` describes the messages, and is
the other end. The trainer carries out commands between steps.
"""

from __future__ import annotations

import contextlib
import json
import queue
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.events.commands import LONGEST_LINE, SOCKET, Command, address, parse_command

#: Seconds that a client has to send its command. One that takes longer, or sends more than `LONGEST_LINE`, is not ours.
PATIENCE = 5.0
#: Clients that may be in the middle of their line at once.
MOST_CLIENTS = 64


@dataclass(frozen=True)
class PendingCommand:
    """A command, and the client that waits for the answer. Answer each once."""

    command: Command
    _connection: socket.socket

    def reply(self, ok: bool, detail: str) -> None:
        """Answer the client, unless it has disconnected."""
        _answer(self._connection, ok, detail)


class Server:
    """Listens in the run directory: a thread reads commands, and the loop takes them between steps.

    Raises:
        TrainkitError: the socket cannot be created, or a living trainer listens there.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / SOCKET
        self._commands: queue.SimpleQueue[PendingCommand] = queue.SimpleQueue()
        self._listener = _listen(run_directory)
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def take(self) -> list[PendingCommand]:
        """Return the commands since the last call, oldest first. Does not wait."""
        taken: list[PendingCommand] = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._commands.get_nowait())
        return taken

    def wait(self, timeout: float) -> list[PendingCommand]:
        """As `take`, but wait up to `timeout` seconds for the first."""
        try:
            return [self._commands.get(timeout=timeout), *self.take()]
        except queue.Empty:
            return []

    def close(self) -> None:
        """Remove the socket, and refuse the commands that nobody took."""
        self._path.unlink(missing_ok=True)
        self._waker.close()
        self._thread.join()
        for command in self.take():
            command.reply(False, "the trainer is shutting down")

    def _serve(self) -> None:
        """Read commands, blocked by no client: a partial line waits in `clients` until it is whole or too old."""
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
        """Queue or refuse the command of a whole line; close the connection on anything else."""
        if line is None or b"\n" not in line:
            connection.close()
            return
        try:
            self._commands.put(PendingCommand(parse_command(*_parse(line.partition(b"\n")[0])), connection))
        except TrainkitError as error:
            _answer(connection, False, error.problem)


def _listen(run_directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(run_directory) as path:
            _remove_stale(run_directory / SOCKET, path)
            listener.bind(path)
        # Nobody can connect before listen(): there is no moment at which others may.
        (run_directory / SOCKET).chmod(0o600)
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise TrainkitError(
            f"the control socket cannot be created: {error.strerror}",
            where=str(run_directory / SOCKET),
            hint="the run directory must be writable and on a file system that supports Unix sockets",
        ) from error
    except TrainkitError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _remove_stale(socket_file: Path, path: str) -> None:
    """Remove the socket of a trainer that died. Raises TrainkitError where a living trainer listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            socket_file.unlink()
            return
    raise TrainkitError(
        "another process is training this run",
        where=str(socket_file),
        hint=f"to watch it: trainkit watch {socket_file.parent}   to stop it: trainkit send {socket_file.parent} stop",
    )


def _accept(listener: socket.socket, *, room: int) -> list[socket.socket]:
    """Return the new connection; none if the client has already gone or there is no room."""
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
    """Return `got` and the bytes since; None where the client has gone or sends too much."""
    try:
        more = connection.recv(LONGEST_LINE)
    except BlockingIOError:
        return got
    except ConnectionError:
        return None
    return got + more if more and len(got) + len(more) <= LONGEST_LINE else None


def _parse(line: bytes) -> tuple[str, Any]:
    """Return the name and argument of a command; the line itself, as a name, where it is not one."""
    try:
        fields = json.loads(line)
        return str(fields["command"]), fields.get("argument")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return line.decode(errors="replace"), None


def _answer(connection: socket.socket, ok: bool, detail: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(1)
        connection.sendall(json.dumps({"ok": ok, "detail": detail}).encode() + b"\n")
