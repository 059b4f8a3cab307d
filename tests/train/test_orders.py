"""Nothing that arrives at the control socket ends a run: every line is answered, and leaves a run that can go on."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import LIMIT

from trainkit.errors import TrainkitError
from trainkit.events.commands import COMMANDS, FACTORS, SOCKET, parse_command
from trainkit.events.control import Server
from trainkit.events.log import EventLog
from trainkit.events.tail import read
from trainkit.recipe.sections.schedule import Wsd
from trainkit.recipe.sections.schedule_spec import NEVER
from trainkit.train.control import Commands, LiveSchedule
from trainkit.train.shared import SharedServer
from trainkit.train.state import Live

STEPS = 100


class Loop:
    """The loop's part in commands, with the real control thread, log and schedule; a step takes no time."""

    def __init__(self, run: Path) -> None:
        self.server, self.log, self.step = Server(run), EventLog(run, attempt=1), 10
        live = Live(jnp.ones(()), jnp.asarray(NEVER))
        self.schedule = LiveSchedule(Wsd(type="wsd", warmup=2, decay=5), steps=STEPS, live=live)
        signal: Any = SimpleNamespace(received=None, count=0)
        self.commands = Commands(server=SharedServer(self.server), signal=signal, log=self.log, schedule=self.schedule)

    def answer(self, line: bytes, run: Path) -> dict[str, Any]:
        """Send a line and take a step; the answer to it."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(LIMIT)
            client.connect(str(run / SOCKET))
            client.sendall(line + b"\n")
            said = b""
            client.settimeout(0.02)
            while not said.endswith(b"\n"):
                with contextlib.suppress(TimeoutError):
                    more = client.recv(1 << 16)
                    assert more, "the connection was closed without an answer"
                    said += more
                self.commands.take(self.step, meanwhile=self.go_on, aside=contextlib.nullcontext)
        self.go_on()
        self.step = min(self.step + 1, STEPS)
        answer: dict[str, Any] = json.loads(said)
        return answer

    def go_on(self) -> None:
        """End a pause, which would wait for a command that nobody sends."""
        self.commands.paused = False


@pytest.fixture(scope="module")
def loop() -> Iterator[tuple[Loop, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        loop = Loop(Path(directory))
        yield loop, Path(directory)
        loop.server.close()
        loop.log.close()


_numbers = st.one_of(
    st.floats(), st.integers(), st.sampled_from([1e16, 1e15, -0.0, 5e-324, 1.8e308, 2**63, 2**31, 10**400, 1e-46])
)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from([*COMMANDS, "finish", "RATE", "", "save\n"]) | st.text(max_size=10)
_orders = st.fixed_dictionaries(
    {"command": _names | _json}, optional={"argument": _numbers | _json | _numbers.map(str)}
)
_lines = (
    _orders.map(lambda order: json.dumps(order).encode())
    | st.binary(max_size=60)
    | _json.map(lambda value: json.dumps(value).encode())
)


@settings(max_examples=120, deadline=None)
@given(_lines.map(lambda line: line.replace(b"\n", b" ")))
@example(b'{"command": "rate", "argument": 1e16}')
@example(b'{"command": "rate", "argument": "1e16"}')
@example(b'{"command": "rate", "argument": 10000000000000000}')
@example(b'{"command": "rate", "argument": 1e999}')
@example(b'{"command": "finish", "argument": 5}')
@example(b'{"command": "sample", "argument": "\\ud800"}')
@example(b'{"command": "sample", "argument": ' + b"[" * 3000 + b"]" * 3000 + b"}")
@example(b'{"command": "sample", "argument": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b"[" * 60_000)
@example(b'{"command": "rate", "argument": ' + b"9" * 50_000 + b"}")
def test_every_line_is_answered_and_the_run_goes_on(loop: tuple[Loop, Path], line: bytes) -> None:
    running, run = loop
    answer = running.answer(line, run)
    assert answer.keys() == {"ok", "detail"} and isinstance(answer["ok"], bool)
    assert len(answer["detail"]) < 500
    # what was carried out can be read by a later attempt, and the schedule is one that a step can use
    factor = running.schedule._rate_factor
    assert math.isfinite(factor) and FACTORS[0] <= factor * (1 + 1e-6) and factor <= FACTORS[1]
    assert running.answer(b'{"command": "save"}', run) == {"ok": True, "detail": f"saving step {running.step - 1}"} or (
        running.step == STEPS
    )
    assert all(event["type"] == "control" for event in read(run))


@given(_names, _numbers | _json | _numbers.map(str))
def test_the_sender_refuses_what_the_trainer_refuses(name: str, argument: object) -> None:
    with contextlib.suppress(TrainkitError):
        command = parse_command(name, argument)
        assert command == parse_command(command.name, command.argument), "the trainer reads the same"
