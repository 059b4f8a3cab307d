"""Commands through a real socket: nobody but the owner, nobody who blocks another, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_run
import pytest
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st
from places import LIMIT

from trainkit.errors import WRONG_INPUT, TrainkitError
from trainkit.events.commands import (
    COMMANDS,
    LONGEST_LINE,
    SOCKET,
    Command,
    IssuedCommand,
    Reply,
    issued_commands,
    parse_command,
    send,
)
from trainkit.events.control import MOST_CLIENTS, MOST_WAITING, Server
from trainkit.events.log import EventLog


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def obey(server: Server, *, number: int = 1) -> list[str]:
    """Take and answer that many commands, as a paused loop does."""
    done: list[str] = []
    deadline = time.monotonic() + LIMIT
    while len(done) < number and time.monotonic() < deadline:
        for command in server.wait(0.1):
            command.reply(True, f"did {command.command.name}")
            done.append(command.command.name)
    return done


#: What goes with the commands that take something.
FITTING: dict[str, str | float] = {"sample": "def main(", "rate": 0.5}
ALL = "save, pause, continue, evaluate, stop, sample PROMPT, rate FACTOR, decay"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reaches_the_loop_and_its_answer_the_client(server: Server, tmp_path: Path, command: str) -> None:
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, tmp_path, command, FITTING.get(command), timeout=LIMIT)
        assert obey(server) == [command]
        assert reply.result() == (True, f"did {command}")
    assert server.take() == []


@settings(max_examples=20, deadline=None)
@given_any(st.text())
def test_any_text_arrives_as_it_was_typed_or_is_refused(prompt: str) -> None:
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as pool:
        server = Server(Path(directory))
        try:
            reply = pool.submit(send, Path(directory), "sample", prompt, timeout=LIMIT)
            (command,) = server.wait(LIMIT)
            command.reply(True, "")
            assert command.command == Command("sample", prompt)
            assert reply.result().ok
        finally:
            server.close()


def test_a_prompt_that_is_too_long_is_refused_before_it_is_sent(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="too long"):
        send(tmp_path, "sample", "x" * LONGEST_LINE)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, tmp_path, "sample", "é" * (LONGEST_LINE // 2 - 100), timeout=LIMIT)
        assert obey(server) == ["sample"]
        assert reply.result().ok


@pytest.mark.parametrize(
    ("command", "argument", "problem"),
    [
        ("save", "now", "'save' takes no argument, found 'now'"),
        ("decay", 5, "'decay' takes no argument, found 5"),
        ("sample", None, "'sample' needs a PROMPT: the text to be continued"),
        ("sample", 5, "'sample' needs a PROMPT"),
        ("sample", "\udc80", "the prompt is not UTF-8"),
        *(
            ("rate", wrong, "'rate' needs a FACTOR of the schedule's learning rate: a number from 1e-06 to 1,000")
            for wrong in (None, "half", "", 0, -1, "nan", "inf", "-inf", 1e-7, "1e16", 1001, 10**400, True, ["y" * 99])
        ),
    ],
)
def test_a_missing_superfluous_or_wrong_argument_is_refused_by_both_sides(
    server: Server, tmp_path: Path, command: str, argument: object, problem: str
) -> None:
    with pytest.raises(TrainkitError) as caught:
        parse_command(command, argument)
    assert caught.value.problem.startswith(problem) and len(caught.value.problem) < 200
    assert caught.value.exit_code == WRONG_INPUT
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(LIMIT)
        client.connect(str(tmp_path / SOCKET))
        client.sendall(json.dumps({"command": command, "argument": argument}).encode() + b"\n")
        assert json.loads(client.recv(4096)) == {"ok": False, "detail": caught.value.problem}
    assert server.take() == []


@pytest.mark.parametrize("written", [0.5, "0.5", "5e-1", ".5"])
def test_a_factor_may_be_a_number_or_be_written_as_one(written: object) -> None:
    assert parse_command("rate", written) == Command("rate", 0.5)


def test_an_unknown_command_is_refused_at_once_and_the_loop_never_sees_it(server: Server, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(LIMIT)
        client.connect(str(tmp_path / SOCKET))
        client.sendall(b'{"command": "explode"}\n')
        answer = json.loads(client.recv(4096))
    assert not answer["ok"]
    assert "'explode'" in answer["detail"] and ALL in answer["detail"]
    assert server.take() == []


@pytest.mark.parametrize(("command", "hint"), [("sav", "did you mean 'save'?"), ("explode", "")])
def test_a_misspelt_command_is_reported_whether_or_not_a_trainer_lives(tmp_path: Path, command: str, hint: str) -> None:
    with pytest.raises(TrainkitError) as caught:
        send(tmp_path / "never-was", command)
    assert caught.value.problem == f"there is no command '{command}'; the commands are {ALL}"
    assert caught.value.hint == hint
    assert caught.value.exit_code == WRONG_INPUT


def test_many_clients_are_all_answered(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        replies = [pool.submit(send, tmp_path, "save", timeout=LIMIT) for _ in range(24)]
        assert obey(server, number=24) == ["save"] * 24
        assert all(reply.result().ok for reply in replies)


@pytest.mark.parametrize(
    "garbage", [b"", b"half a li", b"\xff\x00\n", b"[]\n", b'{"command": null}\n', b"[" * 4000 + b"\n", b"x" * 100_000]
)
def test_a_silent_or_garbage_client_is_in_nobodys_way(server: Server, tmp_path: Path, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / SOCKET))
        client.settimeout(LIMIT)
        try:
            client.sendall(garbage)
        except (BrokenPipeError, ConnectionResetError):
            assert len(garbage) > LONGEST_LINE
        with ThreadPoolExecutor() as pool:
            reply = pool.submit(send, tmp_path, "pause", timeout=LIMIT)
            assert obey(server) == ["pause"]
            assert reply.result().ok


#: A trainer with few descriptors: it takes no command until its input ends, as while it compiles.
_BUSY_TRAINER = """
import os, resource, sys
from pathlib import Path
from trainkit.events.control import Server
server = Server(Path(sys.argv[1]))
free = len(os.listdir("/proc/self/fd")) + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
print("listens", flush=True)
sys.stdin.read()
while True:
    for pending in server.wait(0.1):
        pending.reply(True, pending.command.name)
        if pending.command.name == "stop":
            os._exit(0)
"""


@pytest.mark.parametrize(("free", "kind"), [(20, "commands"), (20, "silence"), (500, "commands"), (500, "silence")])
def test_a_flood_of_connections_is_refused_and_the_trainer_still_hears_commands(
    tmp_path: Path, free: int, kind: str
) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", _BUSY_TRAINER, str(tmp_path), str(free)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert trainer.stdin is not None and trainer.stdout is not None
    with trainer, contextlib.ExitStack() as stack:
        stack.callback(trainer.kill)
        assert trainer.stdout.readline() == "listens\n"
        clients = [stack.enter_context(_connected(tmp_path, kind)) for _ in range(2 * MOST_CLIENTS + MOST_WAITING)]
        refused = [answer for client in clients[-MOST_CLIENTS:] if (answer := _answer_to(client))]
        assert len(refused) == MOST_CLIENTS and not any(answer["ok"] for answer in refused)
        assert {answer["detail"].partition(" ")[0] for answer in refused} == {"the" if free == 20 else "too"}
        for client in clients:
            client.close()
        trainer.stdin.close()
        done = send_until_heard(tmp_path, "stop")
        assert done.ok and trainer.wait(LIMIT) == 0


def _connected(run: Path, kind: str) -> socket.socket:
    """Return a connection that has sent a command, or half of one."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(run / SOCKET))  # without a timeout it waits while the trainer's queue is full
    client.settimeout(LIMIT)
    with contextlib.suppress(BrokenPipeError):
        client.sendall(b'{"command": "save"}\n' if kind == "commands" else b'{"comm')
    return client


def _answer_to(client: socket.socket) -> dict[str, Any]:
    with client.makefile("rb") as lines:
        return dict(json.loads(lines.readline()))


def send_until_heard(run: Path, command: str) -> Reply:
    """Send a command again as long as the trainer is too busy to take it."""
    until = time.monotonic() + LIMIT
    while not (reply := send(run, command, timeout=LIMIT)).ok and time.monotonic() < until:
        time.sleep(0.05)
    return reply


@settings(max_examples=200, deadline=None)
@given_any(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda some: st.lists(some))
)
def test_no_argument_of_a_command_is_more_than_refused(argument: object) -> None:
    for command in (*COMMANDS, "none"):
        with contextlib.suppress(TrainkitError):
            parse_command(command, argument)


def test_only_the_owner_may_connect(server: Server, tmp_path: Path) -> None:
    mode = (tmp_path / SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


def test_a_deep_run_directory_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server = Server(deep)
    try:
        assert (deep / SOCKET).exists()
        with ThreadPoolExecutor() as pool:
            reply = pool.submit(send, deep, "save", timeout=LIMIT)
            assert obey(server) == ["save"]
            assert reply.result().ok
        with pytest.raises(TrainkitError, match="another process"):
            Server(deep)
    finally:
        server.close()
    assert not (deep / SOCKET).exists()
    with pytest.raises(TrainkitError, match="no process"):
        send(deep, "save")


def test_the_socket_of_a_dead_trainer_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET))
        dead.listen()
    with pytest.raises(TrainkitError, match="no process"):
        send(tmp_path, "save")
    server = Server(tmp_path)
    with pytest.raises(TrainkitError, match="another process"):
        Server(tmp_path)
    server.close()
    assert not (tmp_path / SOCKET).exists()


def test_without_a_trainer_the_error_says_how_to_continue(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "never-was"):
        with pytest.raises(TrainkitError, match=r"no process(.|\n)*trainkit resume"):
            send(directory, "save")


def test_a_trainer_that_has_not_opened_its_socket_yet_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(str(os.getpid()))
    with pytest.raises(TrainkitError) as raised:
        send(tmp_path, "stop")
    assert raised.value.problem == (
        f"the trainer (process {os.getpid()}) takes no commands yet: it is caching or compiling"
    )
    assert f"kill {os.getpid()}" in raised.value.hint and "resume" not in raised.value.hint


def test_a_command_to_a_finished_run_advises_what_resume_takes(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    log.write("run_finished", step=3, status="finished", exit_code=0, message="")
    log.close()
    with pytest.raises(TrainkitError, match="it is finished") as raised:
        send(tmp_path, "pause")
    assert "--set train.steps=" in raised.value.hint


def test_a_busy_trainer_is_a_timeout_and_still_gets_the_command(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="between steps"):
        send(tmp_path, "stop", timeout=0.1)
    (command,) = server.wait(LIMIT)
    assert command.command.name == "stop"
    command.reply(True, "to nobody")


def test_commands_that_nobody_took_are_refused_at_the_end(tmp_path: Path) -> None:
    server = Server(tmp_path)
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, tmp_path, "save", timeout=LIMIT)
        while not server._commands.qsize():
            time.sleep(0.01)
        server.close()
        assert reply.result() == (False, "the trainer is shutting down")


def test_a_trainer_that_dies_before_it_answers_is_said_to_have(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()

        def die() -> None:
            connection, _ = listener.accept()
            assert json.loads(connection.recv(100)) == {"command": "save"}
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        with pytest.raises(TrainkitError, match="ended before it answered"):
            send(tmp_path, "save", timeout=LIMIT)
        thread.join()


def test_a_run_directory_that_cannot_be_written_is_an_error_in_words() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        if user == 0:  # who may write anywhere
            os.seteuid(65534)
        try:
            with pytest.raises(TrainkitError, match="cannot be created"):
                Server(Path(directory))
        finally:
            os.seteuid(user)


def test_a_directory_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(TrainkitError, match="cannot be created"):
        Server(tmp_path / "missing")


# the commands of a log


def obeyed(log: EventLog, step: int, command: str, argument: object = None) -> IssuedCommand:
    log.write("control", step=step, command=command, argument=argument, detail="", total_steps=None)
    return IssuedCommand(parse_command(command, argument), step, log.attempt)


def attempt(
    run: Path, number: int, *, resumed_from: int | None = None, repeating: Sequence[IssuedCommand] = ()
) -> EventLog:
    log = EventLog(run, attempt=number)
    told = [each.fields() for each in repeating]
    log.write("run_started", step=resumed_from or 0, **fake_run.started(resumed_from=resumed_from) | {"orders": told})
    return log


def test_only_commands_that_change_what_is_learned_are_to_be_repeated(tmp_path: Path) -> None:
    assert issued_commands(tmp_path) == []
    log = attempt(tmp_path, 1)
    for command in ("save", "pause", "continue", "evaluate", "stop"):
        obeyed(log, 3, command)
    obeyed(log, 4, "sample", 'text of "control" and run_started')
    half, decay = obeyed(log, 5, "rate", 0.5), obeyed(log, 8, "decay")
    log.close()
    assert issued_commands(tmp_path) == [half, decay]


def test_of_several_factors_after_one_step_the_last_counts(tmp_path: Path) -> None:
    log = attempt(tmp_path, 1)
    obeyed(log, 5, "rate", 0.5)
    obeyed(log, 5, "rate", 0.25)
    again = obeyed(log, 5, "rate", 0.5)
    log.close()
    assert issued_commands(tmp_path) == [again]


def test_a_command_that_was_forgotten_does_not_come_back(tmp_path: Path) -> None:
    log = attempt(tmp_path, 1)
    early = obeyed(log, 10, "rate", 0.5)
    obeyed(log, 50, "rate", 0.1)
    log.close()
    attempt(tmp_path, 2, resumed_from=20).close()
    assert issued_commands(tmp_path) == [early]


def test_a_command_that_an_attempt_died_too_early_to_repeat_is_still_to_be_repeated(tmp_path: Path) -> None:
    log = attempt(tmp_path, 1)
    half, tenth = obeyed(log, 30, "rate", 0.5), obeyed(log, 50, "rate", 0.1)
    log.close()
    log = attempt(tmp_path, 2, resumed_from=20, repeating=[half, tenth])
    repeated = obeyed(log, 30, "rate", 0.5)
    log.close()
    assert issued_commands(tmp_path) == [repeated, tenth]
    attempt(tmp_path, 3, resumed_from=40, repeating=[tenth]).close()
    assert issued_commands(tmp_path) == [repeated, tenth]


def test_the_commands_of_a_log_that_no_trainer_wrote_are_ignored(tmp_path: Path) -> None:
    log = attempt(tmp_path, 1)
    half = obeyed(log, 5, "rate", 0.5)
    log.close()
    wrong: list[object] = [
        {"command": "rate", "argument": "much"}, {"command": "rate"}, {"command": ["rate"]}, {"command": None},
        {"command": "decay", "step": None}, {"command": "decay", "attempt": "first"},
        {"type": "run_started", "step": 9},
        {"type": "run_started", "resumed_from": 9, "orders": [{"command": "decay", "step": 1e400, "attempt": 1}, 7]},
    ]  # fmt: skip
    with (tmp_path / "events.jsonl").open("a") as file:
        for told in wrong:
            event = {"type": "control", "t": 0, "step": 7, "attempt": 1, "detail": "", **told}
            file.write(json.dumps(event).replace("Infinity", "1e400") + "\n")
        file.write('["control"]\n{"type": "control", "torn')
    assert issued_commands(tmp_path) == [half]


def test_whoever_closes_leaves_the_socket_of_a_trainer_in_a_directory_that_replaced_its_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    ours = Server(run)
    run.rename(tmp_path / "moved")
    run.mkdir()
    theirs = Server(run)
    ours.close()
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(send, run, "save", None, timeout=LIMIT)
        assert obey(theirs) == ["save"] and reply.result().ok
    theirs.close()
    assert not (run / SOCKET).exists()
