"""Orders through a real socket: nobody but the owner, nobody who blocks another, nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.events.control import COMMANDS, NAME, Server, send


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def obey(server: Server, *, orders: int = 1) -> list[str]:
    """Take and answer that many orders, as a paused loop does."""
    done: list[str] = []
    deadline = time.monotonic() + 20
    while len(done) < orders and time.monotonic() < deadline:
        for command in server.wait(0.1):
            command.reply(True, f"did {command.command}")
            done.append(command.command)
    return done


@pytest.mark.parametrize("command", COMMANDS)
def test_an_order_reaches_the_loop_and_its_answer_the_client(server: Server, tmp_path: Path, command: str) -> None:
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, tmp_path, command, timeout=20)
        assert obey(server) == [command]
        assert reply.result() == (True, f"did {command}")
    assert server.take() == []


def test_an_unknown_order_is_refused_at_once_and_the_loop_never_sees_it(server: Server, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tmp_path / NAME))
        client.sendall(b'{"command": "explode"}\n')
        answer = json.loads(client.recv(4096))
    assert not answer["ok"]
    assert "'explode'" in answer["detail"] and "save, pause, continue, evaluate, stop" in answer["detail"]
    assert server.take() == []


@pytest.mark.parametrize(("command", "hint"), [("sav", "did you mean 'save'?"), ("explode", "")])
def test_a_misspelt_order_is_told_whether_or_not_a_trainer_lives(tmp_path: Path, command: str, hint: str) -> None:
    with pytest.raises(TrainkitError) as caught:
        send(tmp_path / "never-was", command)
    assert caught.value.problem == f"'{command}' is no command; there are save, pause, continue, evaluate, stop"
    assert caught.value.hint == hint
    assert caught.value.exit_code == WRONG_INPUT


def test_many_clients_are_all_answered(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        replies = [pool.submit(send, tmp_path, "save", timeout=20) for _ in range(24)]
        assert obey(server, orders=24) == ["save"] * 24
        assert all(reply.result().ok for reply in replies)


@pytest.mark.parametrize(
    "garbage", [b"", b"half a li", b"\xff\x00\n", b"[]\n", b'{"command": null}\n', b"[" * 4000 + b"\n", b"x" * 100_000]
)
def test_a_silent_or_garbage_client_is_in_nobodys_way(server: Server, tmp_path: Path, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / NAME))
        client.settimeout(10)
        try:
            client.sendall(garbage)
        except (BrokenPipeError, ConnectionResetError):
            assert len(garbage) > 4096
        with ThreadPoolExecutor() as pool:
            reply = pool.submit(send, tmp_path, "pause", timeout=20)
            assert obey(server) == ["pause"]
            assert reply.result().ok


def test_only_the_owner_may_connect(server: Server, tmp_path: Path) -> None:
    mode = (tmp_path / NAME).stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_a_deep_run_directory_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server = Server(deep)
    try:
        assert (deep / NAME).exists()
        with ThreadPoolExecutor() as pool:
            reply = pool.submit(send, deep, "save", timeout=20)
            assert obey(server) == ["save"]
            assert reply.result().ok
        with pytest.raises(TrainkitError, match="another trainer"):
            Server(deep)
    finally:
        server.close()
    assert not (deep / NAME).exists()
    with pytest.raises(TrainkitError, match="no trainer"):
        send(deep, "save")


def test_the_socket_of_a_dead_trainer_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / NAME))
        dead.listen()
    with pytest.raises(TrainkitError, match="no trainer"):
        send(tmp_path, "save")
    server = Server(tmp_path)
    with pytest.raises(TrainkitError, match="another trainer"):
        Server(tmp_path)
    server.close()
    assert not (tmp_path / NAME).exists()


def test_without_a_trainer_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "never-was"):
        with pytest.raises(TrainkitError, match=r"no trainer(.|\n)*trainkit resume"):
            send(directory, "save")


def test_a_busy_trainer_is_a_timeout_and_still_gets_the_order(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="between steps"):
        send(tmp_path, "stop", timeout=0.1)
    (command,) = server.wait(10)
    assert command.command == "stop"
    command.reply(True, "to nobody")


def test_orders_that_nobody_took_are_refused_at_the_end(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, tmp_path, "save", timeout=20)
        while not server._orders.qsize():
            time.sleep(0.01)
        server.close()
        assert reply.result() == (False, "the trainer is ending")


def test_a_trainer_that_dies_before_it_answers_is_said_to_have(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / NAME))
        listener.listen()

        def die() -> None:
            connection, _ = listener.accept()
            assert json.loads(connection.recv(100)) == {"command": "save"}
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        with pytest.raises(TrainkitError, match="ended before it answered"):
            send(tmp_path, "save", timeout=20)
        thread.join()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_directory_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrainkitError, match="cannot be made"):
        Server(tmp_path)


def test_a_directory_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="cannot be made"):
        Server(tmp_path / "missing")
