"""The line that names the pages and their keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from trainkit.dashboard import theme


class Tabs(Widget):
    """`1 overview  2 logs …`; a click chooses."""

    DEFAULT_CSS = "Tabs { height: 1; padding: 0 1; }"

    class Chosen(Message):
        """Somebody has clicked on the name of a page."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names, self._shown, self._told = tuple(names), names[0], ""

    def choose(self, name: str) -> None:
        """Show which page is shown."""
        self._shown = name
        self.refresh()

    def tell(self, text: str) -> None:
        """Show `text` at the right."""
        if text != self._told:
            self._told = text
            self.refresh()

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        for number, name in enumerate(self._names, 1):
            shown = name == self._shown
            parts += [(f"{number} ", theme.FAINT if not shown else theme.DIM)]
            parts += [(name, f"bold {theme.BRIGHT}" if shown else theme.DIM), ("   ", theme.DIM)]
        room = self.size.width - len(self._told)
        left = Content.assemble(*parts)
        if not self._told or room < 10:
            return left.truncate(self.size.width, ellipsis=True)
        left = left.truncate(room, ellipsis=True)
        return Content.assemble(left, " " * (room - left.cell_length), (self._told, theme.WARN))

    def on_click(self, event: Click) -> None:
        place = 0
        for number, name in enumerate(self._names, 1):
            place += len(f"{number} {name}   ")
            if event.x - 1 < place:
                self.post_message(self.Chosen(name))
                return
