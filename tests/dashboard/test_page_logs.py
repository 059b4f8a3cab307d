"""The log page and the panels of lines: what is wrapped, what is followed, levels that nobody knows."""

from __future__ import annotations

from pathlib import Path

import fake_run
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import drive, frame, only, settle
from textual.content import Content
from textual.pilot import Pilot

from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.logs import LogsPage
from trainkit.dashboard.panels import lines
from trainkit.dashboard.panels.lines import CLOCK, Paragraphs, TextPanel


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only(monkeypatch, LogsPage)
    return fake_run.write(tmp_path / "quickstart", fake_run.events(300, total=600))


def body(dashboard: Dashboard) -> list[str]:
    """The lines of the log that are in sight, without the frame."""
    return [line[2:-2] for line in frame(dashboard).split("\n") if line.startswith("│")]


def test_what_is_wrapped_stands_below_the_text_and_not_below_the_time(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert any(line.startswith(" " * CLOCK) for line in body(dashboard))
        assert all(line[CLOCK - 1] == " " and line[CLOCK] != " " for line in body(dashboard) if line.strip())

    drive(run, steps, size=(60, 20))


def test_a_narrow_panel_has_no_room_for_an_indent(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert not any(line.startswith("  ") for line in body(dashboard) if line.strip())

    drive(run, steps, size=(30, 20))


def test_whoever_is_at_the_newest_line_stays_there_when_the_terminal_becomes_narrower(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        lines = dashboard.query_one("#all-lines", TextPanel)
        for width in (60, 90, 50, 120):
            await pilot.resize_terminal(width, 12)
            await settle(pilot)
            assert lines.max_scroll_y > 0 and lines.scroll_offset.y == lines.max_scroll_y, width
        await pilot.press("g")
        await pilot.resize_terminal(50, 12)
        await settle(pilot)
        assert lines.scroll_offset.y == 0, "who has gone back stays there as well"

    drive(run, steps, size=(100, 12))


def test_a_level_that_no_version_known_here_has_is_shown_as_the_lowest(run: Path) -> None:
    told = fake_run.events(3)
    told.append({**told[-1], "type": "log", "level": "hologram", "message": "what is this"})
    fake_run.write(run, told)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert "what is this" in frame(dashboard)
        await pilot.press("v")
        await pilot.pause()
        assert "what is this" not in frame(dashboard)
        await pilot.press("1")
        await pilot.pause()
        assert "what is this" in frame(dashboard)

    drive(run, steps)


@given(st.lists(st.text(alphabet="ab 日\n", max_size=60), max_size=5), st.integers(0, 12), st.integers(2, 60))
def test_nothing_of_a_line_is_lost_by_wrapping_and_nothing_is_wider_than_it_may_be(
    texts: list[str], indent: int, width: int
) -> None:
    paragraphs = Paragraphs(indent=indent)
    paragraphs._lines = [Content(text) for text in texts]
    found = [part.plain for part in paragraphs._at(width)]
    assert "".join("".join(found).split()) == "".join("".join(texts).split())
    assert all(Content(part).cell_length <= width for part in found)


def test_of_lines_that_were_there_before_nothing_is_wrapped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[str] = []
    hanging = lines._hanging

    def counted(line: Content, indent: int, width: int) -> list[Content]:
        wrapped.append(line.plain)
        return hanging(line, indent, width)

    monkeypatch.setattr(lines, "_hanging", counted)
    paragraphs = Paragraphs()
    paragraphs._lines = [Content(f"line {n}") for n in range(200)]
    assert len(paragraphs._at(40)) == len(wrapped) == 200
    paragraphs._lines = [*paragraphs._lines[1:], Content("a new one")]
    assert paragraphs._at(40)[-1].plain == "a new one" and wrapped[200:] == ["a new one"]
