"""A dashboard without a terminal, on a run in the middle of its training, with a trainer that obeys."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fake_run
from places import LIMIT
from textual.app import App
from textual.command import CommandList
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.events.commands import Command
from trainkit.events.control import Server

#: What is told of an order before it is answered.
WAITING = "sent, waiting for the trainer"
Steps = Callable[[Pilot[None], Dashboard], Awaitable[None]]


def write_run(directory: Path, *, steps: int = 300) -> Path:
    """A run of this process whose last event is so new that it does not count as stalled however slow the test is."""
    events = fake_run.events(steps, total=600)
    late = time.time() + 3600 - events[-1]["t"]
    return fake_run.write(directory, [{**event, "t": event["t"] + late} for event in events])


@contextlib.contextmanager
def trainer(run: Path, *, refuses: str = "") -> Iterator[list[Command]]:
    """What a trainer on `run` is ordered; it obeys at once, or answers `refuses`."""
    server, taken, over = Server(run), [], threading.Event()

    def obey() -> None:
        while not over.is_set():
            for command in server.wait(0.05):
                taken.append(command.command)
                command.reply(not refuses, refuses or f"{command.command.name} it is [bold]")

    thread = threading.Thread(target=obey)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
        server.close()


def drive(run: Path, steps: Steps, *, size: tuple[int, int] = (100, 30), key: str = "", **options: Any) -> None:
    """Open the dashboard on all of the log, press the key of a page if there is one, and do `steps` with it."""

    async def drive_it() -> None:
        dashboard = Dashboard(run, **options)
        async with running(dashboard, size) as pilot:
            dashboard.load()
            if key:
                await pilot.press(key)
            await settle(pilot)
            await steps(pilot, dashboard)

    asyncio.run(drive_it())


@contextlib.asynccontextmanager
async def running(app: App[Any], size: tuple[int, int]) -> AsyncIterator[Pilot[Any]]:
    """Run the app without a terminal, and end it as a user ends it: its workers are cancelled before its widgets go.
    `run_test` alone takes the widgets first, and a worker that has just read a file no longer finds where to show it.
    """
    async with app.run_test(size=size) as pilot:
        yield pilot
        if not app._exit:
            app.exit(app.return_value, app.return_code or 0)
        deadline = time.monotonic() + LIMIT
        while app.is_running:
            assert time.monotonic() < deadline, "it never ended"
            await asyncio.sleep(0)


async def settle(pilot: Pilot[Any]) -> None:
    """Until the workers have ended, and those that they have started, and what they tell is drawn."""
    for _ in range(3):
        await until(lambda: all(worker.is_finished for worker in pilot.app.workers), pilot)
        await pilot.pause()


async def until(condition: Callable[[], object], pilot: Pilot[None]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await pilot.pause(0.02)


async def found(words: str, pilot: Pilot[Any]) -> None:
    """Until the palette has found this, and enter chooses it."""

    def first() -> bool:
        commands = pilot.app.screen.query_one(CommandList)
        return commands.highlighted == 0 and words in str(commands.get_option_at_index(0).prompt)

    await until(first, pilot)
    await settle(pilot)


async def answered(pilot: Pilot[None], dashboard: Dashboard) -> Any:
    """What is notified once the trainer has answered an order, which is notified alone."""
    await until(lambda: [told for told in dashboard._notifications if told.message != WAITING], pilot)
    (told,) = dashboard._notifications
    return told


def screen_text(dashboard: Dashboard) -> str:
    """What is on the screen, as text."""
    return "\n".join(strip.text.rstrip() for strip in dashboard.screen._compositor.render_strips())
