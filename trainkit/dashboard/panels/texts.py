"""The overview's panels of text: side by side where there is room, else one at a time."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from trainkit.dashboard.panels.lines import LogPanel, SamplePanel
from trainkit.dashboard.panels.machine import SystemPanel

#: Their names in order, the ids of the panels, and from how many cells on they are side by side.
PANELS, WIDE = {"machine": "machine", "log": "log", "samples": "newest-samples"}, 110


class TextPanels(Container):
    """Attributes:
    shown: the name of the panel that is shown where one has room; its class as well, for the style sheet.
    """

    def __init__(self, shown: str) -> None:
        """The log is `shown` where there is no panel of that name."""
        self.shown = shown if shown in PANELS else "log"
        super().__init__(id="texts", classes=self.shown)

    def compose(self) -> ComposeResult:
        yield SystemPanel(id=PANELS["machine"])
        yield LogPanel(id=PANELS["log"])
        yield SamplePanel(id=PANELS["samples"])

    def turn(self) -> None:
        """Show the next panel."""
        self.remove_class(self.shown)
        self.shown = _after(self.shown)
        self.add_class(self.shown)

    def scroll_lines(self, lines: int) -> None:
        """Scroll the panel that is shown; where all are, or it does not scroll, the log."""
        one = self.size.width < WIDE and self.shown == "samples"
        self.query_one(f"#{PANELS['samples' if one else 'log']}").scroll_relative(y=lines, animate=False)

    def on_resize(self, event: Resize) -> None:
        """Where there is room for one panel only, each says how to get to the next."""
        for name, id in PANELS.items():
            self.query_one(f"#{id}").border_subtitle = "" if event.size.width >= WIDE else f"tab: {_after(name)}"


def _after(name: str) -> str:
    names = list(PANELS)
    return names[(names.index(name) + 1) % len(names)]
