"""Shared by the tests of the dashboard: a pilot waits for what its keys do, and never for a time."""

from __future__ import annotations

import asyncio

import pytest
from places import LIMIT
from textual._context import active_app
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot

from trainkit.dashboard.batches import Batch, BatchReader

#: How often in turn nobody must have a message left: what is drawn may send the next.
QUIET = 3


async def messages_handled(*_: float) -> None:
    """Wait until every widget waits for its next message, in place of textual's wait until the processor is idle:
    beside other load it looks idle at once."""
    app, quiet, rounds = active_app.get(), 0, 0
    while quiet < QUIET and app.is_running and not app._exit:
        app.screen._on_timer_update()
        rounds += 1
        await asyncio.sleep(0 if rounds < 100 else 0.002)  # one that waits for a thread must let it work
        pumps = (app, *app.screen.walk_children(with_self=True))
        quiet = 0 if is_drawing(app) or any(map(at_work, pumps)) else quiet + 1


def at_work(pump: MessagePump) -> bool:
    """Return whether it handles a message or has one left."""
    queue = pump._message_queue
    return pump._running and bool(queue.qsize() or pump._next_callbacks or not queue.ready_event._waiters)


def is_drawing(app: App[object]) -> bool:
    """Return whether the terminal has a new size, or something is to be laid out, drawn, or called after that."""
    screen = app.screen
    flags = (screen._layout_required, screen._scroll_required, screen._repaint_required, screen._recompose_required)
    return app._resize_event is not None or any(flags) or bool(screen._dirty_widgets or screen._callbacks)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a slow machine takes, keys are waited for and notices stay."""
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", messages_handled)
    monkeypatch.setattr(Pilot._wait_for_screen, "__defaults__", (LIMIT,))
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", 3600.0)


@pytest.fixture
def reads_batches() -> None:
    """Let the page of the data read batches."""


@pytest.fixture(autouse=True)
def _no_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no batches where nothing is said of them: each is a process of its own."""
    if "reads_batches" not in request.fixturenames:
        monkeypatch.setattr(BatchReader, "get", lambda reader, step: Batch(error="not read"))
