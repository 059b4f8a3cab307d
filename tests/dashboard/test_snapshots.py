"""Every screen is as it was last looked at and found good: dark at three sizes, light and plain at one.

`tests/snapshots/SIZE/SCREEN.txt` is a screen as text, the same in every theme but the plain one, which has
`SCREEN.plain.txt` where it tells by signs what others tell by colours; `SIZE/THEME.styles` has the colours of
all screens of that size, row by row: so many cells in the colour of this name in theme.py, `ink+b on raised` for bold
text on another ground. After a change that is meant:

    TRAINKIT_SNAPSHOTS=write pytest tests/dashboard/test_snapshots.py
"""

from __future__ import annotations

import asyncio
import difflib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import shown_run
from places import LIMIT
from rich.style import Style
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input
from viewer import running

from trainkit.dashboard import theme
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.batches import BatchReader
from trainkit.dashboard.pages import KEYS, NAMES, Page
from trainkit.dashboard.runs.app import RunsApp
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.rundir import summary
from trainkit.rundir.follow import LogFollower
from trainkit.rundir.listing import RunList

pytestmark = pytest.mark.usefixtures("reads_batches")

SNAPSHOTS = Path(__file__).with_name("snapshots")
SIZES = ((80, 24), (120, 40), (200, 60))
THEMES = ("dark", "light", "plain")
#: The other themes say the same as the dark one in other colours or with other signs, which do not depend on the size.
LOOKED_AT = tuple((size, name) for size in SIZES for name in THEMES if name == THEMES[0] or size == SIZES[1])
#: What more there is to see of a page, by its number and the keys pressed on it.
MORE = {
    "image": (4, ("b",)),
    "compared": (9, ("j", "enter", "j", "enter")),
    "zoomed": (1, ("plus", "x", *["left"] * 5)),
}
#: What lies over the overview, by the key that opens it.
OVER = {"help": "question_mark", "palette": "ctrl+p", "confirm": "S", "ask": "R"}
#: The screens of the runs browser, by the keys that lead there.
BROWSED = {"runs": (), "leaderboard": ("L",)}
SCREENS = (*NAMES, *MORE, *OVER, *BROWSED)
#: Before the styles of each screen.
HEAD = "== "
WRITE = os.environ.get("TRAINKIT_SNAPSHOTS") == "write"
#: Bytes that all snapshots take on disk at most.
MOST_BYTES = 1_500_000

#: The text and the styles of a screen, as they are kept.
Shot = tuple[str, str]
#: What takes the name of a screen, and how it looks.
Show = Callable[[str, App[Any], Shot], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The run, below what is then the working directory, in UTC."""
    directory, zone = tmp_path_factory.mktemp("shown"), os.environ.get("TZ")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield shown_run.make(directory)
    assert os.environ.get("TZ") == zone
    time.tzset()


@pytest.fixture(scope="module")
def batches() -> dict[int, Any]:
    """Batches that have been read by an earlier test."""
    return {}


@pytest.fixture
def run(made: Path, batches: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as it is looked at a while after its end, on a disk where everything has one size."""
    inspect = BatchReader._inspect

    def once(reader: BatchReader, step: int) -> Any:
        if step not in batches:
            batches[step] = inspect(reader, step)
        return batches[step]

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(BatchReader, "_inspect", once)
    monkeypatch.setattr(LogFollower, "now", lambda source: shown_run.NOW)
    monkeypatch.setattr("time.time", lambda: shown_run.NOW)
    monkeypatch.setattr(summary, "_bytes", lambda directory, stop: iter([39_000_000]))
    return made


@pytest.mark.parametrize(
    ("size", "wearing"), LOOKED_AT, ids=[f"{width}x{height}-{name}" for (width, height), name in LOOKED_AT]
)
def test_every_screen_is_as_it_was_looked_at(run: Path, tmp_path: Path, size: tuple[int, int], wearing: str) -> None:
    directory = SNAPSHOTS / f"{size[0]}x{size[1]}"
    kept = styles_kept(directory / f"{wearing}.styles")
    styles: dict[str, str] = {}
    differences: list[str] = []

    def show(name: str, app: App[Any], shot: Shot) -> None:
        text, styles[name] = shot
        if WRITE:
            keep(directory, name, wearing, text)
            return
        where = f"{directory.name}/{name}, {wearing}"
        found = [
            *difference(text_kept(directory, name, wearing), text, where),
            *difference(kept.get(name, ""), styles[name], f"{where}, styles"),
        ]
        if found:
            picture = tmp_path / f"{name}.svg"
            picture.write_text(app.export_screenshot(simplify=True), encoding="utf-8")
            differences.extend([*found, f"its picture: {picture}\n\n"])

    asyncio.run(turn_the_pages(run, size, wearing, show))
    asyncio.run(browse(run.parent, size, wearing, show))
    assert styles.keys() == set(SCREENS)
    if WRITE:
        told = "".join(f"{HEAD}{name}\n{styles[name]}" for name in SCREENS)
        (directory / f"{wearing}.styles").write_text(told, encoding="utf-8")
    assert not differences, f"not as it was:\n{''.join(differences)}"


def test_there_are_snapshots_of_every_screen_and_nothing_else_and_they_are_small() -> None:
    styles = {SNAPSHOTS / f"{width}x{height}" / f"{name}.styles" for (width, height), name in LOOKED_AT}
    texts = {SNAPSHOTS / f"{width}x{height}" / f"{name}.txt" for width, height in SIZES for name in SCREENS}
    wanted = styles | texts
    found = {path for path in SNAPSHOTS.rglob("*") if path.is_file()}
    own = {path for path in found if path.name.endswith(".plain.txt")}
    assert found - own == wanted
    for path in own:
        other = path.with_name(path.name.replace(".plain", ""))
        assert other in wanted and other.read_text() != path.read_text(), f"{path} is needed no more"
    assert sum(path.stat().st_size for path in found) < MOST_BYTES


async def turn_the_pages(run: Path, size: tuple[int, int], wearing: str, show: Show) -> None:
    """Show every page of one dashboard, and what lies over it."""
    app = Dashboard(run)
    await on(app, size, wearing, lambda pilot: each_page(pilot, app, show))


async def each_page(pilot: Pilot[Any], app: Dashboard, show: Show) -> None:
    app.load()
    for name in NAMES:
        await pilot.press(KEYS[name])
        show(name, app, await still(pilot, app.draw_all))
    for name, (number, keys) in MORE.items():
        await pilot.press(str(number), *keys)
        show(name, app, await still(pilot, app.draw_all))
    await pilot.press("1", "x", "0")
    with patch.object(Dashboard, "forbidden", ""):  # as over a run whose trainer is at work
        for name, key in OVER.items():
            await pilot.press(key)
            for field in app.screen.query(Input):
                field.cursor_blink = False
            show(name, app, await still(pilot, app.draw_all))
            await pilot.press("escape")


async def browse(runs: Path, size: tuple[int, int], wearing: str, show: Show) -> None:
    """Show the list of the runs, and the leaderboard."""
    runs = RunList(runs)
    app = RunsApp(runs, Arrangement())

    async def each(pilot: Pilot[Any]) -> None:
        while not runs.passes or any(run.size is None for run in runs.summaries.values()):
            await pilot.pause(0.01)
        for name, keys in BROWSED.items():
            await pilot.press(*keys)
            show(name, app, await still(pilot, app.show))

    await on(app, size, wearing, each)


async def on(
    app: App[Any], size: tuple[int, int], wearing: str, steps: Callable[[Pilot[Any]], Awaitable[None]]
) -> None:
    app.animation_level, app.theme = "none", wearing
    async with running(app, size) as pilot:
        await steps(pilot)


async def still(pilot: Pilot[Any], draw: Callable[[], None]) -> Shot:
    """Return the screen once all is there, nothing is at work, and drawing it again changes nothing."""
    app, before, deadline = pilot.app, ("", ""), time.monotonic() + LIMIT
    while True:
        await pilot.pause()
        await app.workers.wait_for_complete()
        # Asked before it is drawn: what arrives after drawing is there, but not on the screen.
        there = all(page.settled for page in app.screen_stack[0].query(Page) if page.display)
        draw()
        await pilot.pause()
        strips = app.screen._compositor.render_strips()
        now = text_of(strips), styles_of(strips, app.theme)
        if now == before and there and not len(app.workers):
            return now
        assert time.monotonic() < deadline, f"it does not come to rest:\n{now[0]}"
        before = now


def text_of(strips: list[Strip]) -> str:
    return "".join(f"{strip.text.rstrip()}\n" for strip in strips)


def styles_of(strips: list[Strip], wearing: str) -> str:
    """How many cells have which style, row by row; rows that are alike are told once."""
    rows = []
    for strip in strips:
        cells = [(said(segment.style or Style(), wearing), segment.cell_length) for segment in strip]
        runs = groupby((cell for cell in cells if cell[1]), key=lambda cell: cell[0])
        rows.append(", ".join(f"{sum(length for _, length in run)} {style}" for style, run in runs))
    told, place = [], 1
    for row, same in groupby(rows):
        last = place + len(list(same)) - 1
        told.append(f"{place}: {row}" if last == place else f"{place}-{last}: {row}")
        place = last + 1
    return "".join(f"{line}\n" for line in told)


@cache
def said(style: Style, wearing: str) -> str:
    """A style in words, in the colours of a theme; the ground is not told."""
    names = {color: name for name, color in reversed(theme.THEMES[wearing].variables.items())}

    def color(found: Any) -> str:
        if found is None or found.is_default:
            return "-"
        triplet = found.get_truecolor().hex
        return names.get(triplet, triplet)

    flags = {
        "b": style.bold,
        "d": style.dim,
        "i": style.italic,
        "u": style.underline,
        "r": style.reverse,
        "s": style.strike,
    }
    on = color(style.bgcolor)
    marks = "".join(flag for flag, there in flags.items() if there)
    return color(style.color) + (f"+{marks}" if marks else "") + ("" if on in ("ground", "-") else f" on {on}")


def text_kept(directory: Path, name: str, wearing: str) -> str:
    """The text that is kept of a screen; the plain one has its own where it differs."""
    paths = [directory / f"{name}.plain.txt"] * (wearing == theme.PLAIN) + [directory / f"{name}.txt"]
    return next((path.read_text(encoding="utf-8") for path in paths if path.exists()), "")


def keep(directory: Path, name: str, wearing: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    own = directory / f"{name}.plain.txt"
    if wearing == THEMES[0]:
        own.unlink(missing_ok=True)
        (directory / f"{name}.txt").write_text(text, encoding="utf-8")
    elif text != text_kept(directory, name, wearing):
        assert wearing == theme.PLAIN, f"{name} says something else in the theme {wearing}"
        own.write_text(text, encoding="utf-8")


def styles_kept(path: Path) -> dict[str, str]:
    """The styles that are kept, by screen."""
    screens = path.read_text(encoding="utf-8").split(HEAD)[1:] if path.exists() else []
    return {name: rows for name, _, rows in (screen.partition("\n") for screen in screens)}


def difference(kept: str, now: str, where: str) -> Iterator[str]:
    """A unified diff; nothing where they are equal."""
    lines = (text.splitlines(keepends=True) for text in (kept, now))
    return difflib.unified_diff(*lines, f"{where} (kept)", f"{where} (now)", n=1)
