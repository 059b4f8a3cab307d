"""The base classes of pages, and the input line that a key opens."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static
from textual.worker import Worker

from trainkit.dashboard import theme
from trainkit.dashboard.panels.rows import MOVES, RowTable, cell
from trainkit.events.view import View


class Page(Container, can_focus=True):
    """A page of the dashboard. While it is shown, it has the focus, so that its keys work, and is drawn about once a
    second.

    Class attributes:
        NAME: its id and what the tabs call it; one word.
        KEY: the letter that shows it, where it has no number key.
        WORDS: whether it shows log lines or samples, and is therefore drawn at every poll.
    """

    NAME: ClassVar[str]
    KEY: ClassVar[str] = ""
    WORDS: ClassVar[bool] = False

    class Arranged(Message):
        """The page and its widgets have new sizes."""

    class Act(Message):
        """`do` changes the run: it is called if this viewer may change anything."""

        def __init__(self, do: Callable[[], object]) -> None:
            super().__init__()
            self.do = do

    def __init__(self, run_directory: Path) -> None:
        super().__init__(id=self.NAME, classes="page")
        self.run_directory = run_directory
        #: Whether the view ends in the middle of the log, because the rest is still being read.
        self.reading = False

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.post_message, self.Arranged())

    def show_view(self, view: View, *, now: float) -> None:
        """Show the run as of `now` (Unix seconds). This must be cheap where nothing has changed."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in ("filter", "search") or not is_typing(self.screen)

    def offers(self, action: str) -> bool:
        """Return whether footer, help and palette show the keys of this action, because it works now."""
        return True

    def footer_actions(self) -> list[str]:
        """Return the actions of the page's own keys."""
        return [binding.action for binding in type(self).BINDINGS if isinstance(binding, Binding)]

    @property
    def settled(self) -> bool:
        """Whether everything to show is loaded; False while something is still being read."""
        return True

    def work(self, do: Callable[[], Coroutine[Any, Any, None]], *, group: str, only: bool = False) -> None:
        """Run a coroutine in the background; with `only` it replaces what its group is doing.

        The worker makes the coroutine: one made earlier would never be awaited if its worker were cancelled before it
        starts.
        """
        _worker: Worker[None] = self.run_worker(do, group=group, exclusive=only)

    def copy_text(self) -> str | None:
        """Return what the page shows, neutralised, for the clipboard; None where there is nothing."""
        return None

    def preferences(self) -> dict[str, Any]:
        """Return the preferences of the page, as JSON values."""
        return {}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        """Apply the preferences of the page, before the first `show_view`. Wrong values are ignored."""


def begin_typing(line: Input) -> None:
    """Show `line` and give it the focus before the next key.

    The key's binding must have priority: the focused widget handles any other binding, and by then the next keys may
    have reached it. `Widget.focus` would come after them as well.
    """
    line.display = True
    line.screen.set_focus(line)


def is_typing(screen: Screen[Any]) -> bool:
    """Return whether an input line has the focus, so that a key that opens one is an ordinary character."""
    return isinstance(screen.focused, Input)


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
