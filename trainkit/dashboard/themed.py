"""The base class of the applications: terminal driver, themes, help, command palette, ending by a key or a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from threading import Event
from typing import IO, ClassVar, TypeVar, cast

from textual import constants
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, Monochrome
from textual.notifications import SeverityLevel

from trainkit.dashboard import theme
from trainkit.dashboard.keys import Help, PaletteCommands, keys_in_force
from trainkit.dashboard.preferences import Preferences
from trainkit.dashboard.theme import Ascii, Colorless
from trainkit.text import neutralise

#: Seconds after which a lone escape is the key itself: a little longer than the parser waits.
ALONE = 1.25 * constants.ESCAPE_DELAY


class Terminal(LinuxDriver):
    """Textual's driver without its two faults: it polls for keys ten times a second, most of what an idle viewer costs;
    and once the terminal is closed, it waits for ever for its output to be read."""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert self._file is not None
        self._file = cast("TextIOWrapper", _Lasting(self._file))
        self._waking = self.exit_event = _Waking()

    def start_application_mode(self) -> None:
        again, before = self._key_thread is not None and self._key_thread.is_alive(), self.attrs_before
        if again:
            self.disable_input()  # stopped and continued from outside: only one thread may read keys
        super().start_application_mode()
        if again:
            self.attrs_before = before  # the first attributes are the ones to restore

    def run_input_thread(self) -> None:
        """Pass on typed keys until `exit_event` is set or the terminal has gone."""
        parser, decode = XTermParser(self._debug), getincrementaldecoder("utf-8")(errors="replace").decode
        wait: float | None = None
        while not self.exit_event.is_set():
            ready, _, _ = select.select([self.fileno, self._waking.pipe], [], [], wait)
            wait = None
            if self.fileno in ready:
                if not (typed := _read_typed(self.fileno)):
                    os.kill(os.getpid(), signal.SIGHUP)  # as the kernel does when a terminal hangs up
                    return
                wait = ALONE
                if text := decode(typed):
                    for message in parser.feed(text):
                        self.process_message(message)
            for message in parser.tick():
                self.process_message(message)


class _Waking(Event):
    """An event that `select` can wait for: its `pipe` is readable while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe, self._inlet = os.pipe()

    def set(self) -> None:
        if not self.is_set():
            super().set()
            os.write(self._inlet, b"\n")

    def clear(self) -> None:
        if self.is_set():
            super().clear()
            os.read(self.pipe, 1)


class _Lasting:
    """A file that ignores errors of a closed terminal, so that the writing thread continues and ends."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


def _read_typed(terminal: int) -> bytes:
    """Return what was typed; nothing if the terminal has gone."""
    try:
        return os.read(terminal, 1 << 12)
    except OSError:
        return b""


T = TypeVar("T")

HELP = "question_mark"
PALETTE = "find a command or a page by its name"


class Themed(App[T]):
    """Attributes:
    preferences: the person's choices; code that changes them calls `remember`.
    signal: the signal that ended it, if one did.
    """

    TITLE = "trainkit"
    BINDING_GROUP_TITLE = "the window"
    COMMANDS = {PaletteCommands}  # noqa: RUF012 (as textual declares it)
    COMMAND_PALETTE_BINDING = HELP  # the key that the footer has at its right end, however narrow it is
    AUTO_FOCUS = None
    # absolute: textual looks for a relative path beside the file of each subclass
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
        """Return Textual's driver, with `Terminal` in place of the Linux one."""
        found = super().get_driver_class()
        return Terminal if found is LinuxDriver else found

    def end_by_signals(self) -> None:
        """End the application as its key does on SIGTERM and SIGHUP. Call it once mounted."""
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
        """Return Textual's filters and ours, without the one that leaves greys under NO_COLOR."""
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
        """Save `preferences`; a subclass that has a file overrides this."""

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
        """Notify, with the message neutralised: it may contain names of directories and a trainer's answers."""
        super().notify(neutralise(message), title=title, severity=severity, timeout=timeout, markup=markup)

    def watch_theme(self, name: str) -> None:
        self.no_color = name == theme.PLAIN
