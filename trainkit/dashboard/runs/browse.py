"""The list of many runs, the dashboards opened from it, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from trainkit.dashboard import preferences
from trainkit.dashboard.app import Dashboard
from trainkit.dashboard.pages.compare import ComparePage
from trainkit.dashboard.panels.sample import graphics
from trainkit.dashboard.runs.app import RunsApp, RunSelection
from trainkit.dashboard.runs.leaderboard import Arrangement
from trainkit.dashboard.theme import wants_ascii
from trainkit.rundir.listing import RunList


class Opened(Dashboard):
    """The dashboard of a run opened from the list; leaving it returns to the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "detach", "runs", tooltip="back to the list of runs: this run continues"),
        Binding("escape", "detach", "runs", show=False, tooltip="the same, unless escape has something else to do"),
    ]

    def __init__(self, choice: RunSelection, *, readonly: bool, ascii_only: bool, remembered: Path | None) -> None:
        page = ComparePage.NAME if choice.others else ""
        super().__init__(choice.run, readonly=readonly, ascii_only=ascii_only, page=page, remembered=remembered)
        self._others = choice.others

    def on_mount(self) -> None:
        self.query_one(ComparePage).compare_with(self._others)


def show(directory: Path, *, readonly: bool, ascii_only: bool) -> None:
    """Show the list of runs in this process, and the dashboards opened from it, until a person leaves it.

    Raises:
        SystemExit: a SIGTERM or SIGHUP came, or something failed; the terminal has been restored.
    """
    graphics()
    runs, arrangement = RunList(directory), Arrangement()
    while True:
        plain_text, remembered = ascii_only or wants_ascii(), preferences.where()
        app = RunsApp(runs, arrangement, readonly=readonly, ascii_only=plain_text, remembered=remembered)
        choice = app.run()
        _end_with(app)
        if choice is None:
            return
        opened = Opened(choice, readonly=readonly, ascii_only=plain_text, remembered=remembered)
        opened.run()
        _end_with(opened)


def _end_with(app: RunsApp | Dashboard) -> None:
    """End the process if a signal or an error has ended this application."""
    if app.signal is not None:
        raise SystemExit(128 + app.signal)
    if app.return_code:
        raise SystemExit(app.return_code)
