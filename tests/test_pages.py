"""The dashboard's pages: keys, tabs, and the log with its search and levels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import fake_run
import pytest
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input

from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.panels.lines import Lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    events = fake_run.events(300, total=600)
    late = time.time() - events[-1]["t"]
    return fake_run.write(tmp_path / "quickstart", [{**event, "t": event["t"] + late} for event in events])


def drive(run: Path, steps: Callable[[Pilot[None], Dashboard], Awaitable[None]], size: tuple[int, int]) -> None:
    async def drive_it() -> None:
        dashboard = Dashboard(run)
        async with dashboard.run_test(size=size) as pilot:
            dashboard.load()
            await pilot.pause()
            await steps(pilot, dashboard)

    asyncio.run(drive_it())


def shown(app: Dashboard) -> str | None:
    return app.screen.query_one(ContentSwitcher).current


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
def test_a_number_key_shows_its_page_and_1_the_overview_again(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        for number, name in list(enumerate(NAMES, 1))[::-1]:
            await pilot.press(str(number))
            await pilot.pause()
            assert shown(app) == name
        await pilot.press("9")
        assert shown(app) == NAMES[0], "a key without a page does nothing"

    drive(run, steps, size)


def test_a_click_on_a_tab_shows_its_page(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        offset = 0
        for number, name in enumerate(NAMES, 1):
            await pilot.click("Tabs", offset=(offset + 3, 0))
            await pilot.pause()
            assert shown(app) == name
            offset += len(f"{number} {name}   ")

    drive(run, steps, (200, 40))


def test_the_log_is_searched_and_its_lowest_level_raised(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1))
        await pilot.pause()
        lines = app.query_one("#all-lines", Lines)

        def text() -> str:
            return str(lines._text.render())

        everything = text()
        assert everything.count("\n") > 3
        await pilot.press("slash", *"evaluated", "enter")
        app.show(everything=True)
        await pilot.pause()
        assert 0 < len(text().splitlines()) < len(everything.splitlines())
        assert all("evaluated" in line for line in text().splitlines())
        await pilot.press("q")  # the search has let the keys go again
        assert not app.is_running or app._exit

    drive(run, steps, (120, 40))


def test_escape_in_the_log_shows_all_of_it_again(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1))
        await pilot.press("v", "v")
        app.show(everything=True)
        lines = app.query_one("#all-lines", Lines)
        few = len(str(lines._text.render()).splitlines())
        await pilot.press("escape")
        app.show(everything=True)
        await pilot.pause()
        assert len(str(lines._text.render()).splitlines()) > few
        await pilot.press("slash", *"nowhere", "escape")
        app.show(everything=True)
        assert app.query_one(Input).value == ""

    drive(run, steps, (120, 40))
