"""Driving the dashboard's pages, and what looks like them, by their keys without a terminal."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import viewer
from places import LIMIT
from textual.app import App
from textual.pilot import Pilot
from viewer import settle

import trainkit.dashboard.app as app
from trainkit.dashboard.pages import Page

__all__ = ["drive", "frame", "notices", "only", "settle", "until"]


def only(monkeypatch: pytest.MonkeyPatch, page: type[Page]) -> None:
    """Let the dashboard have the overview and this page alone."""
    monkeypatch.setattr(app, "PAGES", (page,))
    monkeypatch.setattr(app, "NAMES", ("overview", page.NAME))
    name_of = {"overview": "overview"}  # the keys of the pages that are missing lead to this one
    monkeypatch.setattr(app.Dashboard, "action_page", lambda self, name: self._turn_to(name_of.get(name, page.NAME)))


#: Open the dashboard on a run, press the key of a page, and go through steps.
drive = partial(viewer.drive, size=(120, 40), key="2")


async def until(text: str, pilot: Pilot[Any], *, seconds: float = LIMIT) -> None:
    """Until this is on the screen."""
    deadline = time.monotonic() + seconds
    while text not in frame(pilot.app):
        assert time.monotonic() < deadline, frame(pilot.app)
        await pilot.pause(0.05)


def notices(shown: App[Any]) -> str:
    """What has been notified and not yet gone."""
    return "\n".join(notice.message for notice in shown._notifications)


def frame(shown: App[Any]) -> str:
    """What is on the screen, as text."""
    return "\n".join(strip.text for strip in shown.screen._compositor.render_strips())
