"""The line that names the pages and their keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

from trainkit.dashboard import theme

#: Between two pages; how many pages have a number key; where the names of the others are.
GAP, KEYED, MORE = "   ", 9, ": more"


class Tabs(Widget):
    """`1 overview   2 logs …`, or `1   2 logs   3` where it is narrow; a click chooses.

    A page without a number key has its name alone; where there is no room, it is left to the command palette.
    """

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
        labels = self._labels()
        if ("", "") in labels:
            labels.append(("", MORE))
        for number, name in labels:
            shown = name == self._shown
            if number or name:
                parts += [(number, theme.DIM), (name, f"bold {theme.BRIGHT}" if shown else theme.DIM), (GAP, theme.DIM)]
        room = self.size.width - len(self._told)
        left = Content.assemble(*parts)
        if not self._told or room < 10:
            return left.truncate(self.size.width, ellipsis=True)
        left = left.truncate(room, ellipsis=True)
        return Content.assemble(left, " " * (room - left.cell_length), (self._told, theme.WARN))

    def on_click(self, event: Click) -> None:
        place = 0
        for (number, told), name in zip(self._labels(), self._names, strict=True):
            place += len(number + told + GAP) if number or told else 0
            if event.x - 1 < place:
                self.post_message(self.Chosen(name))
                return

    def _labels(self) -> list[tuple[str, str]]:
        """Return number and name of each page; where names do not fit, that of the page which is shown alone."""
        full = [(f"{number} " if number <= KEYED else "", name) for number, name in enumerate(self._names, 1)]
        if sum(len(number + name + GAP) for number, name in full) - len(GAP) + len(self._told) <= self.size.width:
            return full
        return [(number, name) if name == self._shown else (number.strip(), "") for number, name in full]
