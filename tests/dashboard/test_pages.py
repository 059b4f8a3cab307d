"""The dashboard's pages: keys, tabs, and the log with its search and levels."""

from __future__ import annotations

import json
from pathlib import Path

import fake_run
import pytest
import viewer
from pages import drive, frame, settle, until
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input, Static

import trainkit.dashboard.app as app_module
from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.pages import KEYS, PAGES, Page
from trainkit.dashboard.pages.data import DataPage
from trainkit.dashboard.pages.system import SystemPage
from trainkit.dashboard.panels.lines import TextPanel
from trainkit.events.tail import NAME
from trainkit.events.view import View


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return viewer.write_run(tmp_path / "quickstart")


def shown(app: Dashboard) -> str | None:
    return app.screen.query_one(ContentSwitcher).current


@pytest.mark.parametrize("size", [(60, 20), (200, 60)])
def test_a_key_shows_its_page_and_1_the_overview_again(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        for name, key in list(KEYS.items())[::-1]:
            await pilot.press(key)
            await pilot.pause()
            assert shown(app) == name and "? help" in frame(app), "a page that shows nothing yet has the keys of all"
        assert set(KEYS) == set(NAMES), "every page has a key"

    drive(run, steps, size=size)


def test_a_click_on_a_tab_shows_its_page(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        offset = 0
        for name in NAMES:
            await pilot.click("Tabs", offset=(offset + 3, 0))
            await pilot.pause()
            assert shown(app) == name
            offset += len(f"{KEYS[name]} {name}   ")

    drive(run, steps, size=(200, 40))


class TenthPage(Page):
    NAME = "tenth"

    def show_view(self, view: View, *, now: float) -> None:
        pass


class EleventhPage(TenthPage):
    NAME = "eleventh"

    def compose(self) -> ComposeResult:
        yield Static("what nobody thought of before")


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (200, 40)])
def test_pages_beyond_the_number_keys_are_reached_by_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    pages = (*PAGES, TenthPage, EleventhPage)
    monkeypatch.setattr(app_module, "PAGES", pages)
    monkeypatch.setattr(app_module, "NAMES", ("overview", *(page.NAME for page in pages)))

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        tabs = frame(app).splitlines()[2]
        assert "9" in tabs and ("tenth   eleventh" in tabs) == (size[0] == 200)
        assert (": more" in tabs) == (size[0] < 200)
        await pilot.press("colon", *"eleventh")
        await viewer.found("page eleventh", pilot)
        await pilot.press("enter")
        await until("what nobody thought of before", pilot)
        assert shown(app) == "eleventh" and "eleventh" in frame(app).splitlines()[2]
        await pilot.press("1")
        await pilot.pause()
        assert shown(app) == "overview"

    drive(run, steps, size=size, key="")
    viewer.drive(run, lambda pilot, app: until("what nobody thought of before", pilot), page="eleventh")


def test_a_metric_of_a_task_is_shown_without_being_registered(tmp_path: Path) -> None:
    events = fake_run.events(60)
    for event in events:
        if event["type"] == "step":
            event["metrics"]["train/token_f1"] = 0.25
        if event["type"] == "evaluated":
            event["metrics"]["validation/held-out/token_f1"] = 0.75

    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await until("token f1 0.7500", pilot)  # the log of the overview
        await pilot.press(str(NAMES.index("metrics") + 1), "slash", *"f1", "enter")
        await until("1 to 2 of 2", pilot)
        assert "train/token_f1" in frame(app) and "validation/held-out/token_f1" in frame(app)

    drive(fake_run.write(tmp_path / "run", events), steps, size=(130, 40), key="")


def test_the_log_is_searched_and_its_lowest_level_raised(run: Path) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1))
        await pilot.pause()
        lines = app.query_one("#all-lines", TextPanel)

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
        lines = app.query_one("#all-lines", TextPanel)
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
        lines = app.query_one("#all-lines", TextPanel)
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
def test_y_copies_what_a_page_shows(run: Path, page: str, told: str) -> None:
    async def steps(pilot: Pilot[None], app: Dashboard) -> None:
        await pilot.press("y")
        assert told in app.clipboard

    drive(run, steps, key=str(NAMES.index(page) + 1))


@pytest.mark.parametrize("page", ["system", "data"])
def test_a_page_is_drawn_at_its_size_as_soon_as_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setattr("trainkit.dashboard.app.DRAW", 1e9)  # nothing is drawn by the clock
    told = fake_run.events(60)
    for event in told[2:]:
        if event["type"] == "step":
            event["metrics"] |= {"data/epochs/prose": 0.5, "time/data_wait": 0.1}

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        if page == "data":
            await until("prose", pilot)
        else:  # more than one bar
            await viewer.until(lambda: len(dashboard.query_one(SystemPage)._waiting) > 30, pilot)

    viewer.drive(fake_run.write(tmp_path / "run", told), steps, page=page)


def test_a_page_has_its_keys_again_after_the_terminal_was_too_small_for_it(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for size in ((10, 3), (100, 30)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
        await pilot.press("slash")
        await pilot.pause()
        assert isinstance(dashboard.focused, Input)

    viewer.drive(run, steps, key=str(NAMES.index("metrics") + 1))


def test_the_data_page_opens_on_the_newest_batch_unless_another_was_asked_for(tmp_path: Path) -> None:
    *before, last = fake_run.events(30, total=60)
    run, key = fake_run.write(tmp_path / "run", before), str(NAMES.index("data") + 1)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(DataPage)
        newest = dashboard.view.step - 1
        assert page._step == newest
        await pilot.press("1")
        await settle(pilot)
        with (run / NAME).open("a") as file:
            file.write(json.dumps({**last, "type": "step", "step": newest + 2, "metrics": {"train/loss": 1.0}}) + "\n")
        await pilot.press(key)
        await settle(pilot)
        assert page._step == newest + 1
        await pilot.press("left", "1")
        await settle(pilot)
        await pilot.press(key)
        await settle(pilot)
        assert page._step == newest, "that was asked for"

    viewer.drive(run, steps, key=key)


def test_while_the_log_is_read_no_batch_of_its_middle_is_taken_for_the_newest(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        page = dashboard.query_one(DataPage)
        page.reading = True
        page.show_view(dashboard.view, now=0.0)
        assert page._step is None
        page.reading = False
        page.show_view(dashboard.view, now=0.0)
        assert page._step == dashboard.view.step - 1

    viewer.drive(run, steps)
