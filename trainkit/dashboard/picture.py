"""The dashboard without a terminal: one frame of it as text or as SVG."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual.pilot import Pilot

from trainkit.errors import TrainkitError

if TYPE_CHECKING:
    from trainkit.dashboard.app import Dashboard

T = TypeVar("T")


def once(run_directory: Path, *, width: int = 120, height: int = 40) -> str:
    """One frame as `height` lines of plain text, as wide as `width` cells at most.

    Raises:
        TrainkitError: there is no such run.
    """
    return _frame(run_directory, _text, width=width, height=height)


def export_svg(run_directory: Path, path: Path, *, width: int = 120, height: int = 40) -> None:
    """Write one frame to `path` as SVG.

    Raises:
        TrainkitError: there is no such run.
    """
    path.write_text(_frame(run_directory, lambda app: app.export_screenshot(simplify=True), width=width, height=height))


def _frame(run_directory: Path, take: Callable[[Dashboard], T], *, width: int, height: int) -> T:
    from trainkit.dashboard.app import Dashboard

    if not run_directory.is_dir():
        raise TrainkitError("there is no such run", where=str(run_directory), hint="list them: trainkit runs")
    dashboard = Dashboard(run_directory)
    taken: list[T] = []

    async def pilot(pilot: Pilot[object]) -> None:
        dashboard.load()
        await pilot.pause()
        await pilot.pause()
        taken.append(take(dashboard))
        dashboard.exit()

    asyncio.run(dashboard.run_async(headless=True, size=(width, height), auto_pilot=pilot))
    return taken[0]


def _text(app: Dashboard) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)
