"""Whatever is found in the place of a log, the dashboard says what it is and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import fake_run
import pytest
from viewer import running

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages import KEYS
from trainkit.dashboard.terminal import once
from trainkit.events.tail import NAME


def lines() -> list[bytes]:
    return [json.dumps(event).encode() + b"\n" for event in fake_run.events(30)]


def newer() -> list[bytes]:
    events = fake_run.events(30)
    events[0]["schema"] = 99
    hologram = {**events[-1], "type": "hologram", "depth": [1, 2]}
    return [json.dumps(event).encode() + b"\n" for event in [*events[:-1], hologram, events[-1]]]


def typed() -> list[bytes]:
    """Events by their keys, whose values nobody wrote."""
    good = [json.loads(line) for line in lines()]
    random.seed(1)
    for event in good[1:]:
        field = random.choice(sorted(event.keys() - {"type"}))
        event[field] = random.choice([None, "a\x1b[31m", [], {}, {"a": None}, -1, 1e400, True])
    return [json.dumps(event).encode() + b"\n" for event in good]


LOGS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "waiting"),
    "torn in its first line": (lambda: lines()[0][:40], "waiting"),
    "torn in its last line": (lambda: b"".join(lines())[:-30], "step 30 / 30"),
    "torn in the middle": (lambda: b"".join([*lines()[:9], b'{"type": "st\n', *lines()[9:]]), "step 30 / 30"),
    "from a newer trainkit": (lambda: b"".join(newer()), "written by a newer trainkit (schema 99)"),
    "a picture": (lambda: bytes(random.Random(0).randbytes(5000)), "its log holds no event"),
    "another program's": (lambda: b'{"level": "info"}\n' * 50 + b"[]\n" + b"[" * 9000 + b"\n", "holds no event"),
    "events with wrong values": (lambda: b"".join(typed()), "step "),
}


@pytest.mark.parametrize("kind", LOGS)
def test_every_page_shows_a_clear_state_of_a_log_that_is(kind: str, tmp_path: Path) -> None:
    content, told = LOGS[kind]
    (tmp_path / NAME).write_bytes(content())
    assert told in once(tmp_path, width=120, height=40)

    async def turn_the_pages() -> None:
        dashboard = Dashboard(tmp_path)
        async with running(dashboard, (100, 30)) as pilot:
            dashboard.load()
            for key in KEYS.values():
                await pilot.press(key)
                await pilot.pause()

    asyncio.run(turn_the_pages())


def test_a_log_that_cannot_be_read_is_reported_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert "its log cannot be read: Is a directory" in once(tmp_path)


def test_a_log_of_a_dead_process_is_a_crash_and_its_socket_refuses(tmp_path: Path) -> None:
    events = fake_run.events(30)[:-1]
    events[0] |= {"pid": 2**22 + 1, "host": os.uname().nodename}
    run = fake_run.write(tmp_path / "run", [e for e in events if e["type"] != "run_finished"])
    assert "crashed" in once(run)
