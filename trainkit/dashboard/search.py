"""A line that a key opens: what is typed right behind the key, or pasted with it, goes into the line."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen
from textual.widgets import Input


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
