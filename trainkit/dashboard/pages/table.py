"""The base class of pages with a table and, below it, details of the chosen row."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.dashboard.pages.page import Page
from trainkit.dashboard.panels.rows import MOVES, RowTable, cell


class TablePage(Page):
    """A page of `rows` with a `detail` below them."""

    DEFAULT_CSS = """
    TablePage > .detail {
        height: 7; max-height: 50%; scrollbar-size-vertical: 1;
        scrollbar-color: $edge; scrollbar-color-hover: $dim; scrollbar-background: $ground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("J", "scroll_detail(1)", "scroll what is below down", show=False),
        Binding("K", "scroll_detail(-1)", "scroll what is below up", show=False),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="framed rows"):
            yield RowTable()
        with VerticalScroll(classes="framed detail", can_focus=False):
            yield Static("", markup=False)

    @property
    def rows(self) -> RowTable:
        return self.query_one(RowTable)

    def entitle(self, title: str, below: str = "") -> None:
        """Set the titles of the frame around the table."""
        frame = self.query_one(".rows", Vertical)
        frame.border_title, frame.border_subtitle = cell(title, theme.DIM), cell(below, theme.DIM)

    def show_detail(self, text: Content, *, title: str = "", from_top: bool = False) -> None:
        """Show `text` below the table."""
        frame = self.query_one(".detail", VerticalScroll)
        frame.border_title = cell(title, theme.DIM)
        if from_top:
            frame.scroll_home(animate=False)
        frame.query_one(Static).update(text)

    def action_move(self, how: str) -> None:
        self.rows.move(how)

    def action_scroll_detail(self, cells: int) -> None:
        self.query_one(".detail", VerticalScroll).scroll_relative(y=cells, animate=False)
