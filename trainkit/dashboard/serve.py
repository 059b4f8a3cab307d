"""The dashboard in a browser, through textual-serve: for this machine only, at a secret address.

The address has a random token in its path; a request without it is refused, also for the web socket. Each browser
tab is a viewer of its own, in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

from aiohttp import web
from textual_serve.server import Server

from trainkit.dashboard import preferences
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages import require_page
from trainkit.errors import FAILED, TrainkitError
from trainkit.printer import show
from trainkit.rundir.follow import Replay
from trainkit.text import one_line

HOST = "127.0.0.1"
#: Bytes of randomness in the address.
TOKEN_BYTES = 24
#: Seconds that open tabs have to close when the server ends, and that the viewer of a tab has to end.
PATIENCE, GRACE = 1.0, 3.0
#: Seconds between two checks that the viewer still polls, and how many may fail.
WATCH_EVERY, WATCHES = 5.0, 12
#: The page may load only what this server serves, and sends no referrer.
HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; connect-src 'self' ws://127.0.0.1:{port};"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guarded(Server):
    """textual-serve under a path that nobody can guess."""

    def __init__(self, command: str, *, port: int, title: str) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        super().__init__(command, host=HOST, port=port, title=title)

    @property
    def address(self) -> str:
        return f"{self.public_url}/{self.token}/"

    async def application(self) -> web.Application:
        """Return the web application: textual-serve behind the token."""
        guarded = web.Application(middlewares=[self._admit])
        guarded.add_subapp(f"/{self.token}", await self._make_app())
        guarded.on_response_prepare.append(self._add_headers)
        return guarded

    async def on_startup(self, app: web.Application) -> None:
        show(f"{self.title} is at {self.address}   (ctrl-c stops the server)")

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        first = request.path.split("/")[1]
        if not secrets.compare_digest(first.encode(errors="replace"), self.token.encode()):
            raise web.HTTPForbidden(text="403: use the address with the token that trainkit watch --serve printed\n")
        return await handler(request)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        for name, value in HEADERS.items():
            response.headers[name] = value.format(port=self.port)


class Viewer(Dashboard):
    """The dashboard of one tab, which always ends. It draws into a pipe: when the browser has gone and nothing reads
    the pipe, the event loop blocks in the middle of a drawing and handles neither signals nor the end."""

    polled = 0

    def poll(self, *, everything: bool = False) -> None:
        self.polled += 1
        super().poll(everything=everything)

    def end_by_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def end(number: int, frame: FrameType | None) -> None:
            timer = threading.Timer(GRACE, os._exit, [128 + number])
            timer.daemon = True
            timer.start()
            loop.call_soon_threadsafe(self._end_by_signal, number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)  # Textual's handler, which the loop would call
            signal.signal(number, end)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def _watch(self) -> None:
        """End this process when the application has not polled for a minute."""
        seen, idle = self.polled, 0
        while idle < WATCHES:
            time.sleep(WATCH_EVERY)
            idle = idle + 1 if self.polled == seen else 0
            seen = self.polled
        os._exit(FAILED)


def serve(
    run_directory: Path,
    *,
    port: int = 0,
    replay: bool = False,
    commands: bool = False,
    ascii_only: bool = False,
    page: str = "",
) -> None:
    """Serve the dashboard of a run until ctrl-c or SIGTERM, and print its address. Port 0 means any free port.

    Whoever has the address may look at the run, and send it commands where `commands` is true. The other options are
    those of `terminal.watch`.

    Raises:
        TrainkitError: there is no such run or page, or the port is taken.
    """
    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    require_page(page)
    listener = _listen(port)
    options = [name for name, on in (("replay", replay), ("commands", commands), ("ascii", ascii_only)) if on]
    command = shlex.join([sys.executable, "-m", __name__, str(run_directory), page, *options])
    server = Guarded(command, port=listener.getsockname()[1], title=one_line(run_directory.absolute().name))
    web.run_app(server.application(), sock=listener, print=None, access_log=None, shutdown_timeout=PATIENCE)


def main(arguments: list[str]) -> None:
    """Run the viewer of one browser tab: RUN PAGE [replay] [commands] [ascii]; PAGE may be empty."""
    run_directory, page, options = Path(arguments[0]), arguments[1], arguments[2:]
    Viewer(
        run_directory,
        replay=Replay(run_directory) if "replay" in options else None,
        readonly="commands" not in options,
        ascii_only="ascii" in options,
        page=page,
        remembered=preferences.where(),
    ).run()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # before the address is printed
    except OSError as error:
        listener.close()
        raise TrainkitError(
            f"port {port} of {HOST} is not available: {error.strerror}", hint="omit --port to use any free one"
        ) from None
    return listener


if __name__ == "__main__":
    main(sys.argv[1:])
