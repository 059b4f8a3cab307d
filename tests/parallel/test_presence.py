"""How the processes of a run learn that another one has ended: here other processes are sockets of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue

import pytest
from places import LIMIT

from trainkit.parallel import presence
from trainkit.parallel.presence import Presence


class Service(dict[str, str]):
    """The coordination service, as far as a presence needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.set = threading.Event()

    def key_value_set(self, key: str, value: str) -> None:
        self[key] = value
        self.set.set()

    def blocking_key_value_get(self, key: str, patience: int) -> str:
        assert self.set.wait(LIMIT)
        return self[key]

    def join(self, *message: str) -> socket.socket:
        """Return a connection to the first process over which these words were sent after its token."""
        connection = self.connect()
        connection.sendall(" ".join([self.values_of_first[1], *message]).encode())
        return connection

    def connect(self) -> socket.socket:
        return socket.create_connection(("localhost", int(self.values_of_first[0])), timeout=LIMIT)

    @property
    def values_of_first(self) -> list[str]:
        return self.blocking_key_value_get(presence._KEY, 0).split()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Service, int], Presence]]:
    """Make presences of this process that do not end it."""
    monkeypatch.setattr(presence, "GRACE", 3600.0)
    made: list[Presence] = []

    def make(service: Service, number: int) -> Presence:
        made.append(Presence(service, number=number, address="localhost:1"))
        return made[-1]

    yield make
    for each in made:
        each.let_main_thread_end()


def lost_by(watching: Presence) -> str:
    """Return the name of the process that a presence has lost, once it has lost one."""
    deadline = time.monotonic() + LIMIT
    while not watching.lost:
        assert time.monotonic() < deadline, "it never learns that a process has ended"
        time.sleep(0.01)
    return watching.lost


def test_a_process_that_ends_by_itself_still_learns_which_other_one_has_ended(
    watch: Callable[[Service, int], Presence],
) -> None:
    service = Service()
    first = watch(service, 0)
    with service.join("1", "east"):
        first.let_main_thread_end()
    assert lost_by(first) == "process 1 on east"


def test_strangers_that_connect_neither_end_the_watch_nor_hold_it_up(
    watch: Callable[[Service, int], Presence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_TIMEOUT", 3600.0)
    service = Service()
    first = watch(service, 0)
    with contextlib.ExitStack() as strangers:
        for words in ("é 1 west", "wrong 1 west", "GET / HTTP/1.1", ""):
            stranger = strangers.enter_context(service.connect())
            stranger.sendall(words.encode())
        service.join("2", "east").close()
        assert lost_by(first) == "process 2 on east"


def test_of_several_processes_that_end_the_others_name_the_first(
    watch: Callable[[Service, int], Presence], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    watch(service, 0)
    survivor = service.join("3", "north")
    one, two = service.join("1", "east"), service.join("2", "west")
    one.close()
    said = survivor.recv(512)
    two.close()
    while b"west" not in said:
        more = survivor.recv(512)
        assert more, "the first process is gone"
        said += more

    ends: Queue[str] = Queue()
    monkeypatch.setattr(Presence, "_end", lambda self, name: ends.put(name))
    elsewhere = Service()
    with socket.create_server(("localhost", 0)) as server:
        elsewhere.key_value_set(presence._KEY, f"{server.getsockname()[1]} token south")
        third = watch(elsewhere, 3)
        connection, _ = server.accept()
        connection.sendall(said)
        assert lost_by(third) == "process 1 on east"
        connection.close()  # the first process ends too, since one of them is gone
        assert ends.get(timeout=LIMIT) == third.lost == "process 1 on east"
