"""The dashboard's pages: keys, tabs, and the log with its search and levels."""

from __future__ import annotations

import time
from pathlib import Path

import fake_run
import pytest
from pages import drive
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input

from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.panels.lines import Lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    events = fake_run.events(300, total=600)
    late = time.time() - events[-1]["t"]
    return fake_run.write(tmp_path / "quickstart", [{**event, "t": event["t"] + late} for event in events])


def shown(app: Dashboard) -> str | None:
    return app.screen.query_one(ContentSwitcher).current


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
def test_a_number_key_shows_its_page_and_1_the_overview_again(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        for number, name in list(enumerate(NAMES, 1))[::-1]:
            await pilot.press(str(number))
            await pilot.pause()
            assert shown(app) == name
        assert len(NAMES) == 9, "every page has a key"

    drive(run, steps, size=size)


def test_a_click_on_a_tab_shows_its_page(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        offset = 0
        for number, name in enumerate(NAMES, 1):
            await pilot.click("Tabs", offset=(offset + 3, 0))
            await pilot.pause()
            assert shown(app) == name
            offset += len(f"{number} {name}   ")

    drive(run, steps, size=(200, 40))


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

    drive(run, steps)


def test_escape_in_the_log_shows_all_of_it_again(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1))
        await pilot.press("v", "v")
        lines = app.query_one("#all-lines", Lines)
        few = len(str(lines._text.render()).splitlines())
        await pilot.press("escape")
        app.show(everything=True)
        await pilot.pause()
        assert len(str(lines._text.render()).splitlines()) > few
        await pilot.press("slash", *"nowhere", "escape")
        app.show(everything=True)
        assert app.query_one(Input).value == ""

    drive(run, steps)


def test_the_log_scrolls_by_keys_and_f_goes_back_to_the_newest_line(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1))
        await pilot.pause()
        lines = app.query_one("#all-lines", Lines)
        end = lines.max_scroll_y
        assert end > 3 and lines.scroll_offset.y == end, "the newest line is in sight"
        for key, place in (("k", end - 1), ("up", end - 2), ("j", end - 1), ("g", 0), ("down", 1), ("G", end)):
            await pilot.press(key)
            await pilot.pause()
            assert lines.scroll_offset.y == place, key
        await pilot.press("pageup")
        await pilot.pause()
        assert lines.scroll_offset.y < end
        await pilot.press("f")
        await pilot.pause()
        assert lines.scroll_offset.y == end

    drive(run, steps, size=(60, 20))


@pytest.mark.parametrize(
    ("page", "told"), [("logs", "evaluated held-out"), ("samples", "argparse"), ("compare", "tokens/s")]
)
def test_y_copies_what_a_page_tells(run: Path, page: str, told: str) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("y")
        assert told in app.clipboard

    drive(run, steps, key=str(NAMES.index(page) + 1))
