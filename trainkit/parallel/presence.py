"""Whether the other processes of a run still live: connections that the kernel closes when one of them ends.

jax notices after 100 seconds that a process is gone, and then aborts the others. So every process keeps a connection to
the first one, over which nothing is sent but the
names of processes that have ended. It closes at once when either of them ends, however that happens, and within
a minute if a host or the network is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from trainkit.errors import FAILED
from trainkit.printer import complain

#: Seconds in which the main thread of a process can end by itself when another one is gone.
GRACE = 20.0
#: Where the first process says how it is reached, and milliseconds that the others wait for that.
_KEY, _PATIENCE = "trainkit/presence", 60_000
#: Seconds before the first keep-alive probe of a silent connection, between two, and how many fail.
_PROBES = (20, 10, 4)
#: Bytes of a message: a token, a number and the name of a host.
_LONGEST = 512
#: Seconds for a connection, and for a message to leave.
_TIMEOUT = 10.0


class Presence:
    """Knows which of the other processes has ended. Watches in a thread of its own.

    Attributes:
        lost: the first process that ended, as "process 1 on host"; empty while all of them live.
        on_stuck: called with a message where the main thread does not end by itself, just before the process ends.
    """

    def __init__(self, client: Any, *, number: int, address: str) -> None:
        """`client` is that of the coordination service, `address` HOST:PORT of the first process."""
        self.lost = ""
        self.on_stuck: Callable[[str], None] = lambda message: None
        self._ends_itself = threading.Event()
        self._client, self._number = client, number
        self._host = address.rpartition(":")[0].strip("[]")
        self._selector = selectors.DefaultSelector()
        self._names: dict[socket.socket, str] = {}
        threading.Thread(target=self._work, name="presence", daemon=True).start()

    def let_main_thread_end(self) -> None:
        """From now on only note which process has ended: the main thread ends this process."""
        self._ends_itself.set()

    def _work(self) -> None:
        # without connections, another process is missed later, by jax
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._listen() if self._number == 0 else self._connect()
            while self._selector.get_map():
                for key, _ in self._selector.select():
                    key.data()

    # the first process

    def _listen(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        server = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6)
        self._token = secrets.token_hex(16)
        self._client.key_value_set(_KEY, f"{server.getsockname()[1]} {self._token} {socket.gethostname()}")
        self._selector.register(server, selectors.EVENT_READ, lambda: self._accept(server))

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.settimeout(_TIMEOUT)
        # a stranger may say nothing, for which the others must not wait
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._admit(connection))

    def _admit(self, connection: socket.socket) -> None:
        """Watch a connection if it is from a process of this run; otherwise close it."""
        self._selector.unregister(connection)
        with contextlib.suppress(OSError, ValueError):
            token, number, host = connection.recv(_LONGEST).split()
            if secrets.compare_digest(token, self._token.encode()):
                self._watch(connection, f"process {int(number)} on {host.decode()}", self._hear_other)
                return
        connection.close()

    def _hear_other(self, connection: socket.socket) -> None:
        if self._is_open(connection):
            return
        name = self._names.pop(connection)
        self._selector.unregister(connection)
        connection.close()
        for other in self._names:
            with contextlib.suppress(OSError):
                other.sendall(f"{name}\n".encode())
        self._lose(name)

    # the others

    def _connect(self) -> None:
        port, token, host = self._client.blocking_key_value_get(_KEY, _PATIENCE).split()
        connection = socket.create_connection((self._host, int(port)), timeout=_TIMEOUT)
        connection.sendall(f"{token} {self._number} {socket.gethostname()}".encode())
        self._watch(connection, f"process 0 on {host}", self._hear_first)

    def _hear_first(self, connection: socket.socket) -> None:
        try:
            said = connection.recv(_LONGEST).decode(errors="replace")
        except OSError:
            said = ""
        if said:
            self._lose(said.partition("\n")[0])  # another process may have ended in the same moment
            return
        self._selector.unregister(connection)
        self.lost = self.lost or self._names.pop(connection)  # the first process may have ended because of another one
        connection.close()
        if not self._ends_itself.is_set():  # at once: without the first process jax aborts this one within moments
            self._end(self.lost)

    # all of them

    def _watch(self, connection: socket.socket, name: str, hear: Callable[[socket.socket], None]) -> None:
        idle, interval, probes = _PROBES
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
        with contextlib.suppress(AttributeError, OSError):  # macOS has another name for it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        self._names[connection] = name
        self._selector.register(connection, selectors.EVENT_READ, lambda: hear(connection))

    def _is_open(self, connection: socket.socket) -> bool:
        try:
            return bool(connection.recv(_LONGEST))
        except OSError:
            return False

    def _lose(self, name: str) -> None:
        """Note that a process has ended, and end this one if its main thread does not, as it may wait for a device."""
        if self.lost:
            return
        self.lost = name

        def end_if_stuck() -> None:
            if not self._ends_itself.wait(GRACE):
                self._end(name)

        threading.Thread(target=end_if_stuck, name="end", daemon=True).start()

    def _end(self, name: str) -> None:
        message = f"{name} has ended, and this process cannot continue without it"
        complain(f"error: {message}\nhint: its output says why; to continue: trainkit resume RUN, in all processes")
        limit = threading.Timer(GRACE, os._exit, (FAILED,))  # the log may not answer
        limit.daemon = True
        limit.start()
        with contextlib.suppress(Exception):
            self.on_stuck(message)
        os._exit(FAILED)
