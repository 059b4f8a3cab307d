"""The log, with a search and a lowest level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import Page, begin_typing
from trainkit.dashboard.panels.lines import CLOCK, TextPanel, log_line
from trainkit.events.view import LEVELS, LogLine, View
from trainkit.text import neutralise


class LogsPage(Page):
    """The log: `/` searches, `v` raises the lowest level that is shown, `f` goes back to the newest line."""

    NAME = "logs"
    WORDS = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", key_display="/", priority=True),
        Binding("v", "level", "level"),
        Binding("f", "follow", "follow"),
        Binding("j,down", "scroll('down')", "down", show=False),
        Binding("k,up", "scroll('up')", "up", show=False),
        Binding("pagedown,ctrl+d", "scroll('page_down')", "a page down", show=False),
        Binding("pageup,ctrl+u", "scroll('page_up')", "a page up", show=False),
        Binding("g,home", "scroll('home')", "first", show=False),
        Binding("G,end", "scroll('end')", "last", show=False),
        Binding("escape", "all", "all lines", show=False),
    ]

    def __init__(self, run_directory: Path) -> None:
        super().__init__(run_directory)
        self._level = 0
        self._view = View()
        self._drawn: object = None
        #: False if the newest line was not visible in the last session, until the person scrolls.
        self._follow = True
        self._search = Input(placeholder="text to look for; escape shows all", id="log-search")

    def compose(self) -> ComposeResult:
        self._search.display = bool(self._search.value)
        yield self._search
        yield TextPanel(id="all-lines", indent=CLOCK)

    def preferences(self) -> dict[str, Any]:
        follow = self.query_one(TextPanel).at_end if self._drawn is not None else self._follow
        return {"level": LEVELS[self._level], "search": self._search.value, "follow": follow}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        if preferences.get("level") in LEVELS:
            self._level = LEVELS.index(preferences["level"])
        if isinstance(search := preferences.get("search"), str):
            self._search.value = neutralise(search)
            self._search.display = bool(search)
        self._follow = preferences.get("follow") is not False

    def show_view(self, view: View, *, now: float) -> None:
        self._view = view
        self._show()

    def _show(self) -> None:
        view, wanted = self._view, self._search.value.casefold()
        content = (view.entries, wanted, self._level)
        if content == self._drawn:
            return
        self._drawn = content
        shown = self._lines()
        lines = self.query_one(TextPanel)
        level = f", {LEVELS[self._level]} and worse" if self._level else ""
        lines.border_title = Content.styled(f"log: {len(shown):,} of {len(view.log):,} lines{level}", theme.DIM)
        follow = self._follow or (lines.max_scroll_y > 0 and lines.at_end)
        lines.show([log_line(line) for line in shown], follow=follow)

    def _lines(self) -> list[LogLine]:
        wanted = self._search.value.casefold()
        log = self._view.log
        return [line for line in log if LEVELS.index(line.level) >= self._level and wanted in line.text.casefold()]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "all":
            return self._search.display or self._level > 0  # else escape is not this page's
        return super().check_action(action, parameters)

    def copy_text(self) -> str | None:
        """The lines that are shown."""
        return "\n".join(log_line(line).plain for line in self._lines()) or None

    def action_search(self) -> None:
        begin_typing(self._search)

    def action_level(self) -> None:
        self._level = (self._level + 1) % len(LEVELS)
        self._show()

    def action_follow(self) -> None:
        """Go to the newest line and follow the log."""
        self.action_scroll("end")

    def action_scroll(self, how: str) -> None:
        lines, self._follow = self.query_one(TextPanel), True
        match how:
            case "down" | "up":
                lines.scroll_relative(y=1 if how == "down" else -1, animate=False)
            case "page_down" | "page_up":
                page = max(1, lines.size.height - 1)
                lines.scroll_relative(y=page if how == "page_down" else -page, animate=False)
            case "home":
                lines.scroll_home(animate=False)
            case _:
                lines.scroll_end(animate=False)

    def action_all(self) -> None:
        self._search.value, self._search.display = "", False
        self._level = 0
        self.focus()
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.focus()
