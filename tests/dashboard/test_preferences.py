"""What is remembered of a person, and how little it may matter where it cannot be."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Input
from viewer import drive, write_run

from trainkit.dashboard import preferences
from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.pages import KEYS, Page
from trainkit.dashboard.panels.lines import TextPanel
from trainkit.dashboard.preferences import Preferences


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart", steps=20)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    kept = Preferences(
        theme="light",
        page="logs",
        panel="machine",
        looks={"train/loss": [True, "auto", False]},
        prompt="é\n",
        pages={"logs": {"level": 2}},
    )
    preferences.write(kept, tmp_path / "deep" / "er" / "dashboard.json")
    assert preferences.read(tmp_path / "deep" / "er" / "dashboard.json") == kept
    assert os.listdir(tmp_path / "deep" / "er") == ["dashboard.json"], "nothing is left beside it"


@given(text=st.one_of(st.binary(max_size=200), st.just(b"[" * 100_000), st.just(b"")))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "file").write_bytes(text)
    assert preferences.read(tmp_path / "file") == Preferences()


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=3)
VALUES = JSON | st.dictionaries(st.text(), JSON)


@given(found=st.dictionaries(st.sampled_from([*Preferences.__dataclass_fields__, "other"]), VALUES))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_a_foreign_file_only_values_of_the_right_kind_are_taken(tmp_path: Path, found: dict[str, object]) -> None:
    (tmp_path / "file").write_text(json.dumps(found))
    kept = preferences.read(tmp_path / "file")
    for name, value in vars(kept).items():
        assert type(value) is type(getattr(Preferences(), name))
    assert all(isinstance(page, dict) for page in kept.pages.values())


def test_where_it_cannot_be_written_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    preferences.write(Preferences(), tmp_path / "file" / "below" / "dashboard.json")
    (tmp_path / "taken").mkdir()
    preferences.write(Preferences(), tmp_path / "taken")
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]
    assert preferences.read(tmp_path / "taken") == Preferences()


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    preferences.write(Preferences(prompt="secret"), tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_it_lies_in_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert preferences.where() == Path("/somewhere/trainkit/dashboard.json")
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", unusable)
        assert preferences.where() == Path.home() / ".local/state/trainkit/dashboard.json"


def test_theme_page_panel_scale_and_prompt_come_back_with_the_next_viewer(run: Path, tmp_path: Path) -> None:
    async def leave(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("l", "tab", "T", "5", "q")

    async def come_back(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.pause()
        assert dashboard.theme == "light" and dashboard.query_one(ContentSwitcher).current == NAMES[4]
        await pilot.press("1")
        await pilot.pause()
        assert dashboard.viewport.look("train/loss").log and dashboard.query_one("#samples-panel").has_class("-shown")

    for steps in (leave, come_back):
        drive(run, steps, remembered=tmp_path / "preferences.json")


def test_how_each_page_is_shown_comes_back_with_the_next_viewer(run: Path, tmp_path: Path) -> None:
    number = {name: str(NAMES.index(name) + 1) for name in NAMES}

    async def leave(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(number["logs"], "v", "slash", *"attempt", "enter")
        await pilot.press(number["samples"], "w", "w")
        await pilot.press(number["checkpoints"], "o")
        await pilot.press(number["compare"], "m", "t")
        await pilot.press(number["data"], "t", "1", "q")

    async def come_back(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.query_one("#log-search", Input).value == "attempt"
        before = {page.NAME: page.preferences() for page in dashboard.query(Page)}
        assert before["logs"] == {"level": "warning", "search": "attempt", "follow": True}
        assert before["samples"] == {"prompt": "", "beside": "first"}
        assert before["checkpoints"] == {"present": True} and before["data"] == {"follow": True}
        assert before["compare"]["axis"] == "tokens" and before["compare"]["metric"] != "train/loss"
        for name in NAMES:
            await pilot.press(number[name])
            await pilot.pause()
        assert dashboard.query_one("#log-search", Input).display
        assert {page.NAME: page.preferences() for page in dashboard.query(Page)} == before

    for steps in (leave, come_back):
        drive(run, steps, remembered=tmp_path / "preferences.json")


def test_a_log_that_was_left_scrolled_up_is_not_followed_the_next_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "quickstart", steps=300)
    logs = str(NAMES.index("logs") + 1)

    async def leave(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(logs)
        await pilot.pause()
        await pilot.press("g", "q")

    async def come_back(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.pause()
        lines = dashboard.query_one("#all-lines", TextPanel)
        assert lines.max_scroll_y > 0 and lines.scroll_offset.y == 0
        await pilot.press("f", "q")

    async def follow(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.pause()
        assert dashboard.query_one("#all-lines", TextPanel).at_end

    for steps in (leave, come_back, follow):
        drive(run, steps, size=(60, 20), remembered=tmp_path / "preferences.json")


def test_a_foreign_theme_page_and_panel_are_the_defaults(run: Path, tmp_path: Path) -> None:
    pages = {
        "logs": {"level": ["high"], "search": 7, "follow": {}}, "metrics": {"pinned": [[]]}, "data": {"follow": []},
        "samples": {"prompt": [], "beside": {}}, "compare": {"metric": {}, "axis": []}, "checkpoints": {"present": "x"},
    }  # fmt: skip
    foreign = {"theme": "\x1b[31m", "page": "nowhere", "panel": "#", "looks": {"train/loss": [1]}, "pages": pages}
    (tmp_path / "preferences.json").write_text(json.dumps(foreign))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.theme == "dark" and dashboard.query_one(ContentSwitcher).current == NAMES[0]
        for key in KEYS.values():
            await pilot.press(key)
            await pilot.pause()

    drive(run, steps, remembered=tmp_path / "preferences.json")


def test_without_a_file_nothing_is_remembered_and_nothing_written(run: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("T", "5", "q")

    drive(run, steps)
    assert sorted(tmp_path.rglob("*")) == before
