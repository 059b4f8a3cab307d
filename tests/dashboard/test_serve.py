"""The dashboard in a browser: for who has the address, on this machine, and only to look unless more was asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from places import LIMIT
from viewer import trainer, write_run

from trainkit.errors import FAILED
from trainkit.events.commands import Command

aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed: the browser was not tested")
pytest.importorskip("textual_serve", reason="the extra `serve` is not installed: the browser was not tested")


class Served(NamedTuple):
    address: str
    origin: str
    port: int
    process: subprocess.Popen[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart", steps=50)


@contextlib.contextmanager
def serving(run: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "trainkit", "watch", str(run), "--serve", *options]
    environment = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.search(r"(http://127\.0\.0\.1:(\d+))/\S+/", line)
            assert found, line
            yield Served(found[0], found[1], int(found[2]), process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT)


def asked(steps: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            await steps(session)

    asyncio.run(ask())


async def screen(socket: aiohttp.ClientWebSocketResponse, *, until: str) -> str:
    """What the browser's terminal has been sent when `until` is in it."""
    sent = ""
    async with asyncio.timeout(LIMIT):
        while until not in sent:
            message = await socket.receive()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), sent
            sent += message.data.decode() if isinstance(message.data, bytes) else ""
    return sent


def test_without_the_token_nothing_is_served_and_with_it_the_page_its_files_and_the_screen(run: Path) -> None:
    async def steps(session: aiohttp.ClientSession) -> None:
        token = served.address.removeprefix(served.origin).strip("/")
        wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
        for path in ("/", "/ws", "/static/js/textual.js", "/download/x", f"/{wrong}/", f"/{wrong}/ws", f"/?{token}"):
            async with session.get(served.origin + path) as answer:
                assert answer.status == 403, path
                assert token not in await answer.text()
        for path in ("/ws", f"/{wrong}/ws"):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(served.origin + path)
        async with session.get(served.address) as answer:
            assert answer.status == 200 and answer.headers["Referrer-Policy"] == "no-referrer"
            page = await answer.text()
        (script,) = re.findall(r'src="([^"]+textual\.js)"', page)
        async with session.get(script) as answer:
            assert answer.status == 200
        (address,) = re.findall(r'data-session-websocket-url="([^"]+)"', page)
        assert address.startswith(f"ws://127.0.0.1:{served.port}/{token}/")
        async with session.ws_connect(address + "?width=100&height=30") as socket:
            assert "step 50" in await screen(socket, until="step 50")

    with serving(run) as served:
        asked(steps)


def test_it_listens_on_this_machine_alone(run: Path) -> None:
    with serving(run) as served:
        lines = Path(f"/proc/{served.process.pid}/net/tcp").read_text().splitlines()[1:]
        listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
        ours = [address for address in listening if address.endswith(f":{served.port:04X}")]
        assert ours == [f"0100007F:{served.port:04X}"]


@pytest.mark.parametrize("options", [(), ("--allow-commands",)])
def test_a_browser_may_only_look_unless_commands_are_allowed(run: Path, options: tuple[str, ...]) -> None:
    async def steps(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(served.address.replace("http", "ws") + "ws?width=100&height=30") as socket:
            await screen(socket, until="step 50")
            await socket.send_json(["stdin", "c"])
            await screen(socket, until="save it is" if options else "is read-only")

    with trainer(run) as commands, serving(run, *options) as served:
        asked(steps)
        assert commands == ([Command("save")] if options else [])


def test_the_browser_begins_with_the_page_asked_for_and_in_ascii(run: Path) -> None:
    async def steps(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(served.address.replace("http", "ws") + "ws?width=100&height=30") as socket:
            seen = await screen(socket, until="step time")
            assert not set(seen) & set("─│╭╮━")

    with serving(run, "--page", "system", "--ascii") as served:
        asked(steps)


@pytest.mark.parametrize(
    ("options", "said"), [(["--serve", "--page", "sistem"], "no page 'sistem'"), (["--port", "8000"], "--serve")]
)
def test_options_that_lead_nowhere_are_refused(run: Path, options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "trainkit", "watch", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


#: Lets a viewer look every 0.2 s whether it still polls, from the moment on when a file is there.
IMPATIENT = """
import os, time, types
def sleep(seconds):
    while not os.path.exists({stuck!r}):
        time.sleep(0.1)
    time.sleep(0.2)
serve.time = types.SimpleNamespace(sleep=sleep)
"""


def viewer_that_nobody_reads(run: Path, code: str = "") -> subprocess.Popen[bytes]:
    """The viewer of a tab whose browser has gone, stuck in its drawing."""
    environment = {**os.environ, "XDG_STATE_HOME": str(run.parent / "state")}
    environment |= {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "COLUMNS": "200", "ROWS": "60"}
    code = f"import sys\nfrom trainkit.dashboard import serve\n{code}\nserve.main(sys.argv[1:])"
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run), ""], stdin=pipe, stdout=pipe, env=environment, pipesize=4096
    )
    for _ in range(int(10 * LIMIT)):
        assert process.poll() is None
        if any("pipe_w" in wchan.read_text() for wchan in Path(f"/proc/{process.pid}/task").glob("*/wchan")):
            return process
        time.sleep(0.1)
    process.kill()
    raise TimeoutError("it does not draw")


def test_a_viewer_stuck_in_a_pipe_that_nobody_reads_ends_by_sigterm(run: Path) -> None:
    with viewer_that_nobody_reads(run) as process:
        process.terminate()
        assert process.wait(LIMIT) == 128 + signal.SIGTERM


def test_a_viewer_whose_browser_has_gone_ends_by_itself(run: Path) -> None:
    with viewer_that_nobody_reads(run, IMPATIENT.format(stuck=str(run / "stuck"))) as process:
        (run / "stuck").touch()
        assert process.wait(LIMIT) == FAILED


def test_a_port_that_is_taken_is_an_error_in_words(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "trainkit", "watch", str(run), "--serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"port {port} of 127.0.0.1 is not available" in done.stderr
    assert "Traceback" not in done.stderr
