"""An application in our colours, on any terminal: every theme, no colour at all, ASCII alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, Monochrome
from textual.notifications import SeverityLevel

from trainkit.dashboard import theme
from trainkit.dashboard.filters import Ascii, Colorless
from trainkit.dashboard.habits import Habits
from trainkit.events import plain

T = TypeVar("T")


class Themed(App[T]):
    """Attributes:
    habits: what is remembered of the person; whoever changes it calls `remember`.
    """

    BINDING_GROUP_TITLE = "the window"
    # as it is: textual looks for a relative path beside the file of each subclass
    CSS_PATH = Path(__file__).with_name("dashboard.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("T", "next_theme", "theme", show=False, tooltip="the next colours, in the end none"),
    ]

    def __init__(self, habits: Habits, *, ascii_only: bool = False) -> None:
        self._colorless, self._ascii = Colorless(), Ascii(enabled=ascii_only)
        super().__init__()
        theme.install(self)
        self.habits = habits
        if os.environ.get("NO_COLOR"):
            self.theme = theme.PLAIN
        elif habits.theme in theme.THEMES:
            self.theme = habits.theme

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's own, but for the one that leaves greys where NO_COLOR is set, and ours."""
        filters = [found for found in super().get_line_filters() if not isinstance(found, Monochrome)]
        filters += [self._ascii] if self._ascii.enabled else []
        return [*filters, self._colorless] if self.theme == theme.PLAIN else filters

    def wear(self, name: str) -> None:
        """Change to the theme of this name, and remember it."""
        self.theme = self.habits.theme = name
        self.remember()

    def remember(self) -> None:
        """Keep `habits` for the next time. Nobody does here."""

    def action_next_theme(self) -> None:
        names = list(theme.THEMES)
        self.wear(names[(names.index(self.theme) + 1) % len(names)])

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """As any application's, but inert: names of directories and what a trainer answers are told so."""
        super().notify(plain.inert(message), title=title, severity=severity, timeout=timeout, markup=markup)

    def watch_theme(self, name: str) -> None:
        self.no_color = name == theme.PLAIN
