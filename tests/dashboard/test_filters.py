"""Terminals without colours, and without characters beyond ASCII."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.pilot import Pilot
from viewer import drive, screen_text, settle, write_run

import trainkit.dashboard as dashboards
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.charts.plot import MARKS
from trainkit.dashboard.pages import KEYS
from trainkit.dashboard.runs.leaderboard import BLOCKS
from trainkit.dashboard.theme import ascii_of, wants_ascii


@given(st.text() | st.text(alphabet=st.characters(min_codepoint=0x2500, max_codepoint=0x29FF)))
def test_text_in_ascii_is_ascii_and_as_wide(text: str) -> None:
    assert ascii_of(text).isascii() and cell_len(ascii_of(text)) == cell_len(text)


def test_signs_become_signs_like_them() -> None:
    assert ascii_of("╭─╮│█⠀⣿⡇⢸⠤⣀⠉→▲ é 日本") == "+-+|# #||-.'>^ e ????"


def test_every_sign_that_is_drawn_has_one_in_ascii_and_no_two_marks_of_a_chart_the_same() -> None:
    drawn = {
        character
        for path in Path(dashboards.__file__).parent.rglob("*.py")
        for constant in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
        for character in constant.value
        if not character.isascii()
    }
    assert len(drawn) > 40, "they have been found"
    assert not {sign for sign in drawn if ascii_of(sign) == "?"}
    assert len({ascii_of(sign) for sign, _ in MARKS.values()}) == len(MARKS)


def test_a_higher_value_never_has_the_lower_block() -> None:
    told = ascii_of(BLOCKS)
    assert told == "_" * told.count("_") + "#" * told.count("#")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"LANG": "en_GB.UTF-8"}, False),
        ({"LANG": "C.utf8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # what Python makes of it
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LANG": "C", "TRAINKIT_ASCII": "0"}, False),
        ({"LANG": "en_GB.UTF-8", "TRAINKIT_ASCII": "1"}, True),
    ],
)
def test_ascii_is_for_locales_that_are_not_utf_8_and_for_who_asks(environment: dict[str, str], wanted: bool) -> None:
    assert wants_ascii(environment) == wanted


def test_in_ascii_every_page_and_question_is_ascii(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for keys in (*KEYS.values(), "?", "colon", "S", "R"):
            await pilot.press("question_mark" if keys == "?" else keys)
            await settle(pilot)
            assert screen_text(dashboard).isascii(), keys
            if keys not in KEYS.values():
                await pilot.press("escape")
                await pilot.pause()

    drive(write_run(tmp_path / "naïve ✓ 日本"), steps, size=(120, 40), ascii_only=True)


def test_the_plain_theme_has_no_colour_in_any_cell_and_says_what_is_chosen_by_reverse_video(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        dashboard.theme = "plain"
        await pilot.pause()
        for key in (*KEYS.values(), "colon"):
            await pilot.press(key)
            await settle(pilot)
            styles = [s.style for strip in dashboard.screen._compositor.render_strips() for s in strip if s.style]
            assert all(style.color is None and style.bgcolor is None for style in styles), key
            if key in (KEYS["recipe"], "colon"):
                assert any(style.reverse for style in styles), key

    run = write_run(tmp_path / "quickstart")
    (run / "recipe.toml").write_text('schema = 1  # a.toml:1\n[run]\nname = "x"  # a.toml:3\nseed = 0  # a.toml:4\n')
    drive(run, steps, size=(120, 40))


@pytest.mark.parametrize(("value", "theme"), [("1", "plain"), ("", "dark")])
def test_no_color_chooses_the_plain_theme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, theme: str
) -> None:
    monkeypatch.setenv("NO_COLOR", value)

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        assert dashboard.theme == theme and dashboard.no_color == (theme == "plain")

    drive(write_run(tmp_path / "quickstart", steps=5), steps)
