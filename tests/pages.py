"""Driving the dashboard's pages, and what looks like them, by their keys without a terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

import trainkit.dashboard.app as app
from trainkit.dashboard.pages import Page

Steps = Callable[[Pilot[None], app.Dashboard], Awaitable[None]]


def only(monkeypatch: pytest.MonkeyPatch, page: type[Page]) -> None:
    """Let the dashboard have the overview and this page alone."""
    monkeypatch.setattr(app, "PAGES", (page,))
    monkeypatch.setattr(app, "NAMES", ("overview", page.NAME))


def drive(run: Path, steps: Steps, *, size: tuple[int, int] = (120, 40), key: str = "2") -> None:
    """Open the dashboard on a run, press the key of a page, and go through `steps`."""

    async def drive_it() -> None:
        dashboard = app.Dashboard(run)
        async with dashboard.run_test(size=size) as pilot:
            dashboard.load()
            await pilot.press(key)
            await settle(pilot)
            await steps(pilot, dashboard)

    asyncio.run(drive_it())


async def settle(pilot: Pilot[Any]) -> None:
    """Until the workers have ended, and those that they have started, and what they tell is drawn."""
    for _ in range(3):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


async def until(text: str, pilot: Pilot[Any], *, seconds: float = 60.0) -> None:
    """Until this is on the screen."""
    deadline = time.monotonic() + seconds
    while text not in frame(pilot.app):
        assert time.monotonic() < deadline, frame(pilot.app)
        await pilot.pause(0.05)


def notices(shown: App[Any]) -> str:
    """What has been notified and not yet gone."""
    return "\n".join(notice.message for notice in shown._notifications)


def frame(shown: App[Any]) -> str:
    """What is on the screen, as text."""
    return "\n".join(strip.text for strip in shown.screen._compositor.render_strips())
