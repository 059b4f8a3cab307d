"""The trainer's end of the control socket: it receives commands in the run directory and answers them.

Whoever may connect may command, so the socket belongs to its owner alone. `commands.py` describes the messages, and is
the other end. The trainer carries out commands between steps.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
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
from trainkit.events.tail import file_of
from trainkit.printer import quote

#: Seconds that a client has to send its command. One that takes longer, or sends more than `LONGEST_LINE`, is not ours.
PATIENCE = 5.0
#: Clients that may be in the middle of their line at once.
MOST_CLIENTS = 64
#: Commands that may wait for the trainer at once. Each keeps a descriptor open, and a trainer needs some for its files.
MOST_WAITING = 64
_BUSY = "too many commands are waiting for the trainer: try again when it has answered them"


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
        self._file = file_of(self._path.stat())
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
        with contextlib.suppress(OSError):  # another trainer may have replaced the run's directory
            if file_of(self._path.stat()) == self._file:
                self._path.unlink()
        self._waker.close()
        self._thread.join()
        for command in self.take():
            command.reply(False, "the trainer is shutting down")

    def _serve(self) -> None:
        """Read commands, blocked by no client: a partial line waits in `clients` until it is whole or too old."""
        clients: dict[socket.socket, tuple[bytes, float]] = {}
        with selectors.DefaultSelector() as selector, _Door(self._listener) as door, self._wake:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select(PATIENCE / 5 if clients else None)}
                if self._wake in ready:
                    break
                room = len(clients) < MOST_CLIENTS
                if self._listener in ready and (connection := door.accept(has_room=room)) is not None:
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
        if self._commands.qsize() >= MOST_WAITING:
            _answer(connection, False, _BUSY)
            return
        try:
            self._commands.put(PendingCommand(parse_command(*_parse(line.partition(b"\n")[0])), connection))
        except TrainkitError as error:
            _answer(connection, False, error.problem)
        except RecursionError:  # lists within lists: reading them succeeded, and showing them does not
            _answer(connection, False, "the command is nested too deeply")


class _Door:
    """Accepts connections, and refuses them with an answer where there is no room or the process has no descriptor
    left.

    A connection that nobody can accept would wake the thread for ever, so one descriptor is kept to refuse with.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def __enter__(self) -> _Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self._spare is not None:
            os.close(self._spare)

    def accept(self, *, has_room: bool) -> socket.socket | None:
        """Return the new connection; None if the client has already gone or was refused."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse_with_spare()
            return None
        if not has_room:
            _answer(connection, False, _BUSY)
            return None
        connection.setblocking(False)
        return connection

    def _refuse_with_spare(self) -> None:
        if self._spare is None:  # another thread took it the last time
            time.sleep(0.1)
        else:
            os.close(self._spare)
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            _answer(connection, False, "the trainer has no file descriptor left for a connection")
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._spare = None


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
        hint=f"to watch it: trainkit watch {quote(socket_file.parent)}"
        f"   to stop it: trainkit send {quote(socket_file.parent)} stop",
    )


def _read(connection: socket.socket, got: bytes) -> bytes | None:
    """Return `got` and the bytes since; None where the client has gone or sends too much."""
    try:
        more = connection.recv(LONGEST_LINE)
    except BlockingIOError:
        return got
    except OSError:  # the client has gone
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
