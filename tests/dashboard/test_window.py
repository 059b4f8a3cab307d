"""The help, the palette, the themes, the clipboard, and terminals of every size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Static
from viewer import Steps, drive, found, screen_text, settle, until, write_run

from trainkit.dashboard import theme
from trainkit.dashboard.app import NAMES, Dashboard
from trainkit.dashboard.keys import Help, keys_in_force
from trainkit.dashboard.pages import KEYS as PAGE_KEYS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "quickstart")


def page(dashboard: Dashboard) -> str | None:
    return dashboard.screen_stack[0].query_one(ContentSwitcher).current


def test_the_help_shows_every_key_in_force_on_every_page(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for number, name in enumerate(NAMES[:9], 1):
            await pilot.press(str(number))
            await pilot.pause()
            keys = keys_in_force(dashboard.screen)
            assert {"q", "S", "c", "?", "T"} <= {key.keys.split()[-1] for key in keys}
            assert "the replay" not in {key.group for key in keys}, "there is none"
            await pilot.press("question_mark")
            await pilot.pause()
            assert isinstance(dashboard.screen, Help)
            told = str(dashboard.screen._text()).splitlines()
            for key in keys:
                assert any(key.keys in line and key.meaning in line for line in told), key
            assert number == 1 or keys[0].group == f"this page: {name}"
            await pilot.press("j", "G", "k", "pagedown", "g", "q")
            await pilot.pause()
            assert not isinstance(dashboard.screen, Help) and dashboard.is_running

    drive(run, steps, size=(80, 24))


def test_the_help_scrolls_to_its_end_on_a_small_screen(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("question_mark")
        await settle(pilot)
        last = str(dashboard.screen.query_one(".help Static", Static).content).splitlines()[-1].strip()
        assert last not in screen_text(dashboard)
        await pilot.press("G")
        await settle(pilot)
        assert last in screen_text(dashboard)

    drive(run, steps, size=(60, 20))


def test_the_palette_does_what_a_key_does(run: Path) -> None:
    async def choose(words: str, key: str, pilot: Pilot[None]) -> None:
        await pilot.press(key, *words)
        await found(words, pilot)
        await pilot.press("enter")

    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await choose("page logs", "colon", pilot)
        await until(lambda: page(dashboard) == "logs", pilot)
        await choose("theme colour", "ctrl+p", pilot)
        await until(lambda: dashboard.theme == "colour-blind", pilot)
        await choose("help", "colon", pilot)
        await until(lambda: isinstance(dashboard.screen, Help), pilot)

    drive(run, steps, size=(100, 40))


def test_the_palette_has_the_keys_of_the_page_in_front(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press(str(NAMES.index("logs") + 1), "colon", *"search")
        await found("search (/)", pilot)
        await pilot.press("enter")
        await until(lambda: dashboard.focused is not None and dashboard.focused.id == "log-search", pilot)

    drive(run, steps, size=(100, 40))


def test_t_goes_through_all_themes(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        worn = []
        for _ in theme.THEMES:
            worn.append(dashboard.theme)
            await pilot.press("T")
            await pilot.pause()
        assert worn == list(theme.THEMES) and dashboard.theme == worn[0]

    drive(run, steps)


TEXT = ("dim", "ink", "bright", "train", "rate", "norm", "speed", "good", "busy", "warn", "bad")


@pytest.mark.parametrize("name", theme.THEMES)
def test_text_stands_out_from_its_ground_in_every_theme(name: str) -> None:
    """WCAG 2.1, 1.4.3: a contrast of 4.5 : 1 at least."""
    colors = theme.THEMES[name].variables
    grounds = ["ground", "raised", *(["chosen"] if name != theme.PLAIN else [])]  # in plain, that is reverse video
    for ink in (*TEXT, *(f"validation-{n}" for n in range(1, 5))):
        for ground in grounds:
            assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_y_copies_where_the_run_is(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        await pilot.press("y")
        await pilot.pause()
        assert dashboard.clipboard == str(run)
        assert [(told.title, told.message) for told in dashboard._notifications] == [("copied", str(run))]

    drive(run, steps)


@pytest.mark.parametrize("size", [(20, 5), (23, 40), (200, 7), (1, 1), (2, 1), (1, 60)])
def test_a_terminal_that_is_too_small_says_so_and_nothing_else(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        told = "".join(screen_text(dashboard).split())
        assert told == f"toosmall:{size[0]}x{size[1]}" or (size[0] * size[1] < 30 and len(told) <= size[0] * size[1])
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert "too small" not in screen_text(dashboard) and "quickstart" in screen_text(dashboard)

    drive(run, steps, size=size)


def resized(sizes: list[tuple[int, int]], keys: list[str]) -> Steps:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for size, key in zip(sizes, keys, strict=True):
            await pilot.resize_terminal(*size)
            await pilot.press(key)
            await pilot.pause()
            lines = screen_text(dashboard).split("\n")
            assert len(lines) == size[1] and all(len(line) <= size[0] for line in lines)

    return steps


KEYS = st.sampled_from(["1", "2", "3", "4", "5", "6", "7", "8", "question_mark", "colon", "S", "R", "escape", "tab"])
SIZES = st.tuples(st.integers(1, 220), st.integers(1, 70))


@example([((133, 25), "colon"), ((5, 67), "tab"), ((142, 36), "escape")])
@given(st.lists(st.tuples(SIZES, KEYS), min_size=1, max_size=6))
@settings(max_examples=5, deadline=None)
def test_no_size_and_no_page_ends_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[tuple[int, int], str]]
) -> None:
    run = write_run(tmp_path_factory.mktemp("run") / "quickstart", steps=50)
    drive(run, resized([size for size, _ in steps], [key for _, key in steps]), size=(80, 24))


def once(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainkit", "watch", str(run), "--once", *options]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_one_frame_of_any_page_in_any_size_goes_through_a_pipe(run: Path) -> None:
    done = once(run, "--size", "60x20", "--page", "logs", "--ascii")
    lines = done.stdout.removesuffix("\n").split("\n")
    assert done.returncode == 0 and done.stderr == "" and len(lines) == 20 and max(map(len, lines)) <= 60
    assert "6 logs" in done.stdout and "evaluated held-out" in done.stdout and done.stdout.isascii()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--size", "wide"), "'wide' is not a size"),
        (("--size", "0x9"), "'0x9' is not a size"),
        (("--size", "9x99999"), "'9x99999' is not a size"),
        (("--page", "nowhere"), "there is no page 'nowhere'; the pages are overview, metrics"),
    ],
)
def test_a_size_or_page_that_is_none_is_an_error_in_words(run: Path, options: tuple[str, ...], told: str) -> None:
    done = once(run, *options)
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""


@pytest.mark.parametrize("size", [(80, 24), (200, 30)])
def test_vi_keys_arrows_and_pages_scroll_the_text_of_the_overview(run: Path, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        log = dashboard.query_one("#log-panel")
        await pilot.pause()
        bottom = log.scroll_offset.y
        assert bottom > 3
        for up, down in (("k", "j"), ("up", "down"), ("pageup", "pagedown")):
            await pilot.press(up)
            await pilot.pause()
            assert log.scroll_offset.y < bottom
            await pilot.press(down)
            await pilot.pause()
            assert log.scroll_offset.y == bottom

    drive(run, steps, size=size)


def test_where_not_all_names_fit_the_tabs_name_the_page_in_front_and_a_click_finds_the_others(run: Path) -> None:
    async def steps(pilot: Pilot[None], dashboard: Dashboard) -> None:
        for name, key in PAGE_KEYS.items():
            tabs = screen_text(dashboard).split("\n")[2]
            await pilot.click("Tabs", offset=(f" {tabs} ".index(f" {key} "), 0))
            await pilot.pause()
            tabs = screen_text(dashboard).split("\n")[2]
            assert (
                page(dashboard) == name
                and f"{key} {name}" in tabs
                and all(f" {other}" in tabs for other in PAGE_KEYS.values())
            )

    drive(run, steps, size=(60, 20))
