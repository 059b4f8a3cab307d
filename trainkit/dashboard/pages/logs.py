"""All lines of the log that are kept, with a search and a lowest level."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.lines import Lines, log_line
from trainkit.events.view import View

LEVELS = ("info", "warning", "error")


class Logs(Page):
    """The log: `/` searches, `v` raises the lowest level that is shown."""

    NAME = "logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", key_display="/"),
        Binding("v", "level", "level"),
        Binding("escape", "all", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._level = 0
        self._told: object = None

    def compose(self) -> ComposeResult:
        search = Input(placeholder="text to look for; escape shows all", id="log-search")
        search.display = False
        yield search
        yield Lines(id="all-lines")

    def show_view(self, view: View, *, now: float) -> None:
        wanted = self.query_one(Input).value.casefold()
        told = (view.told, wanted, self._level)
        if told == self._told:
            return
        self._told = told
        shown = [
            line for line in view.log if LEVELS.index(line.level) >= self._level and wanted in line.text.casefold()
        ]
        lines = self.query_one(Lines)
        level = f", {LEVELS[self._level]} and worse" if self._level else ""
        lines.border_title = Content.styled(f"log: {len(shown):,} of {len(view.log):,} lines{level}", theme.DIM)
        lines.show([log_line(line) for line in shown])

    def action_search(self) -> None:
        search = self.query_one(Input)
        search.display = True
        search.focus()

    def action_level(self) -> None:
        self._level = (self._level + 1) % len(LEVELS)

    def action_all(self) -> None:
        search = self.query_one(Input)
        search.value, search.display = "", False
        self._level = 0
        self.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.focus()
