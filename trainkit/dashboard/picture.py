"""The dashboard without a terminal: one frame of it as text or as SVG."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual.pilot import Pilot

from trainkit.errors import TrainkitError

if TYPE_CHECKING:
    from trainkit.dashboard.app import Dashboard

#: Seconds that a page may take to read what it shows.
PATIENCE = 30.0

T = TypeVar("T")


def once(run_directory: Path, *, width: int = 120, height: int = 40, page: str = "", ascii_only: bool = False) -> str:
    """One frame as `height` lines of plain text, as wide as `width` cells at most; of `page`, or of the overview.

    Raises:
        TrainkitError: there is no such run, or no such page.
    """
    return _frame(run_directory, _text, width=width, height=height, page=page, ascii_only=ascii_only)


def export_svg(
    run_directory: Path, path: Path, *, width: int = 120, height: int = 40, page: str = "", theme: str = ""
) -> None:
    """Write one frame to `path` as SVG; of `page`, or of the overview, in `theme`, or the default one.

    Raises:
        TrainkitError: there is no such run, or no such page.
    """

    def take(app: Dashboard) -> str:
        return app.export_screenshot(simplify=True)

    told = _frame(run_directory, take, width=width, height=height, page=page, theme=theme)
    path.write_text(told, encoding="utf-8")


def _frame(
    run_directory: Path,
    take: Callable[[Dashboard], T],
    *,
    width: int,
    height: int,
    page: str,
    theme: str = "",
    ascii_only: bool = False,
) -> T:
    from trainkit.dashboard.app import Dashboard, require_page
    from trainkit.dashboard.pages import Page

    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    require_page(page)
    dashboard = Dashboard(run_directory, page=page, ascii_only=ascii_only)
    if theme:
        dashboard.theme = theme
    taken: list[T] = []

    async def pilot(pilot: Pilot[object]) -> None:
        def busy() -> bool:
            """Whether something is read, whoever began it; a reader that another has replaced is not waited for."""
            reading = any(not worker.is_finished for worker in dashboard.workers)
            return reading or not all(shown.settled for shown in dashboard.query(Page) if shown.display)

        dashboard.load()
        until, quiet = time.monotonic() + PATIENCE, 0
        while quiet < 2 and time.monotonic() < until:  # what has been read may lead to more that is to be read
            await pilot.pause(0.02)
            quiet = 0 if busy() else quiet + 1
        dashboard.draw_all()
        await pilot.pause()
        taken.append(take(dashboard))
        dashboard.exit()

    asyncio.run(dashboard.run_async(headless=True, size=(width, height), auto_pilot=pilot))
    return taken[0]


def _text(app: Dashboard) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)
