"""The base class of every page, and the line that a key opens."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import Binding
from textual.containers import Container
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import Worker

from trainkit.events.view import View


class Page(Container, can_focus=True):
    """A page of the dashboard. While it is shown, it has the focus, so that its keys work, and is drawn about once a
    second.

    Class attributes:
        NAME: its id and what the tabs call it; one word.
        WORDS: whether it shows log lines or samples, and is therefore drawn at every poll.
    """

    NAME: ClassVar[str]
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
        #: Whether the view is that of the log's middle, because the rest of it is still being read.
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

        The coroutine is made by the worker: one that is made before, and whose worker is cancelled before it begins,
        is never awaited.
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

    The key's binding must have priority: any other is looked at by the widget that has the focus, at which the keys
    behind it may have arrived by then. `Widget.focus` too would come behind them.
    """
    line.display = True
    line.screen.set_focus(line)


def is_typing(screen: Screen[Any]) -> bool:
    """Return whether an input line has the focus, so that a key that opens one is an ordinary character."""
    return isinstance(screen.focused, Input)
