"""The base class of the applications: themes, no colour, ASCII; help, command palette, ending by a key or a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, Monochrome
from textual.notifications import SeverityLevel

from trainkit.dashboard import theme
from trainkit.dashboard.driver import Terminal
from trainkit.dashboard.filters import Ascii, Colorless
from trainkit.dashboard.keys import PaletteCommands, keys_in_force
from trainkit.dashboard.preferences import Preferences
from trainkit.dashboard.screens import Help
from trainkit.text import neutralise

T = TypeVar("T")

HELP = "question_mark"
PALETTE = "find a command or a page by its name"


class Themed(App[T]):
    """Attributes:
    preferences: the person's choices; whoever changes them calls `remember`.
    signal: the signal that ended it, if one did.
    """

    TITLE = "trainkit"
    BINDING_GROUP_TITLE = "the window"
    COMMANDS = {PaletteCommands}  # noqa: RUF012 (as textual declares it)
    COMMAND_PALETTE_BINDING = HELP  # the key that the footer has at its right end, however narrow it is
    AUTO_FOCUS = None
    # as it is: textual looks for a relative path beside the file of each subclass
    CSS_PATH = Path(__file__).with_name("dashboard.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("T", "next_theme", "theme", show=False, tooltip="the next colour theme; the last has no colours"),
        Binding("ctrl+c,ctrl+q", "leave", "leave", show=False, priority=True, tooltip="leave: this stops no run"),
        Binding(
            HELP, "help", "help", show=False, key_display="?", tooltip="the keys, and what the signs on a chart mean"
        ),
        Binding("ctrl+p", "command_palette", "commands", show=False, priority=True, tooltip=PALETTE),
        Binding("colon", "command_palette", "commands", show=False, tooltip=PALETTE),
    ]

    def __init__(self, preferences: Preferences, *, ascii_only: bool = False) -> None:
        self._colorless, self._ascii = Colorless(), Ascii(enabled=ascii_only)
        super().__init__()
        theme.install(self)
        self.preferences = preferences
        self.signal: int | None = None
        if os.environ.get("NO_COLOR"):
            self.theme = theme.PLAIN
        elif preferences.theme in theme.THEMES:
            self.theme = preferences.theme

    def get_driver_class(self) -> type[Driver]:
        """Textual's own, but for the one that wakes without need."""
        found = super().get_driver_class()
        return Terminal if found is LinuxDriver else found

    def end_by_signals(self) -> None:
        """From now on, a signal that ends a process ends the application as its key does. For when it is mounted."""
        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._end_by_signal, number)

    def _end_by_signal(self, number: int) -> None:
        self.signal = number
        self.action_leave()

    def action_leave(self) -> None:
        self.exit()

    def offers(self, action: str) -> bool:
        """Return whether footer, help and palette show the keys of this action, because it works now."""
        return True

    def action_help(self) -> None:
        self.push_screen(Help(keys_in_force(self.screen)))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's own, but for the one that leaves greys where NO_COLOR is set, and ours."""
        filters = [found for found in super().get_line_filters() if not isinstance(found, Monochrome)]
        filters += [self._ascii] if self._ascii.enabled else []
        return [*filters, self._colorless] if self.theme == theme.PLAIN else filters

    def commands_without_key(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Yield (name, meaning, what does it) of what only the command palette offers."""
        for name in theme.THEMES:
            yield f"theme {name}", "the window: a colour theme", partial(self.wear, name)

    def wear(self, name: str) -> None:
        """Change to the theme of this name, and remember it."""
        self.theme = self.preferences.theme = name
        self.remember()

    def remember(self) -> None:
        """Save `preferences`. This class does not."""

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
        """Notify as any application, but neutralised: messages contain names of directories and a trainer's answers."""
        super().notify(neutralise(message), title=title, severity=severity, timeout=timeout, markup=markup)

    def watch_theme(self, name: str) -> None:
        self.no_color = name == theme.PLAIN
