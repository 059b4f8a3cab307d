"""What every page is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.containers import Container
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import Worker

from trainkit.events.view import View


class Page(Container, can_focus=True):
    """A page of the dashboard. It has the focus while it is shown, so that its keys work, and is drawn then, about
    once a second.

    Class attributes:
        NAME: its id and what the tabs call it; one word.
        WORDS: whether it shows lines of the log or samples, and is drawn at every look at the log.
    """

    NAME: ClassVar[str]
    WORDS: ClassVar[bool] = False

    class Arranged(Message):
        """The page and what is on it have their sizes, which they had not, or other ones."""

    class Act(Message):
        """`do` changes the run: it is called if this viewer may change anything."""

        def __init__(self, do: Callable[[], object]) -> None:
            super().__init__()
            self.do = do

    def __init__(self, run_directory: Path) -> None:
        super().__init__(id=self.NAME, classes="page")
        self.run_directory = run_directory
        #: Whether the view is that of the log's middle, because the rest of it is still being read.
        self.reading = False

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.post_message, self.Arranged())

    def show_view(self, view: View, *, now: float) -> None:
        """Show the run as of `now` (Unix seconds). Must cost little where nothing has changed."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in ("filter", "search") or not is_typing(self.screen)

    @property
    def settled(self) -> bool:
        """Whether all that is to be shown now is there; False while something is still being read for it."""
        return True

    def work(self, do: Callable[[], Coroutine[Any, Any, None]], *, group: str, only: bool = False) -> None:
        """Do it beside what is shown; `only`: instead of what the group is doing.

        The coroutine is made by the worker: one that is made before, and whose worker is cancelled before it begins,
        is never awaited.
        """
        _worker: Worker[None] = self.run_worker(do, group=group, exclusive=only)

    def copy_text(self) -> str | None:
        """What the page is about, inert, for the clipboard; None where there is nothing."""
        return None

    def preferences(self) -> dict[str, Any]:
        """What is to be remembered of how the page is shown, as JSON has it."""
        return {}

    def adopt(self, preferences: Mapping[str, Any]) -> None:
        """Be shown as `preferences` says, before the first `show_view`. What is foreign in it is left out."""


def begin_typing(line: Input) -> None:
    """Show `line` and have it take the keys from the very next one on.

    The key's binding must have priority: any other is looked at by the widget that has the focus, at which the keys
    behind it may have arrived by then. `Widget.focus` too would come behind them.
    """
    line.display = True
    line.screen.set_focus(line)


def is_typing(screen: Screen[Any]) -> bool:
    """Whether a line of the screen has the keys, so that one that opens a line is a character like any other."""
    return isinstance(screen.focused, Input)
