"""Text that scrolls: the log and the samples. All of it is inert, none of it markup."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import theme
from trainkit.events.view import Line, View

LEVELS = {"info": theme.TEXT, "warning": theme.WARN, "error": theme.BAD}
#: Lines and samples that are laid out; the rest is in the log file.
MOST_LINES, MOST_SAMPLES = 200, 12


class Lines(VerticalScroll, can_focus=False):
    """A panel of text."""

    DEFAULT_CSS = "Lines { height: 1fr; width: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._text = Static("", markup=False)
        self._told: object = None

    def compose(self) -> ComposeResult:
        yield self._text

    @property
    def at_end(self) -> bool:
        """Whether the last line is in sight."""
        return self.scroll_offset.y >= self.max_scroll_y - 1

    def show(self, lines: Sequence[Content], *, follow: bool = True) -> None:
        """Show these lines; the last is in sight, unless somebody has scrolled up or it is not to be followed."""
        at_end = follow and self.at_end
        self._text.update(Content("\n").join(lines))
        if at_end:
            self.call_after_refresh(self.scroll_end, animate=False)


def log_line(line: Line) -> Content:
    """A line of the log with its time, in the colour of its level."""
    clock = time.strftime("%H:%M:%S ", time.localtime(line.t))
    return Content.assemble((clock, theme.DIM), (line.text, LEVELS[line.level]))


class LogLines(Lines):
    """What happened, the newest at the bottom, in sight unless somebody has scrolled up."""

    BORDER_TITLE = "log"

    def show_view(self, view: View) -> None:
        """Show the view's newest lines."""
        if (told := (view.told, len(view.log))) == self._told:
            return
        self._told = told
        self.show([log_line(line) for line in list(view.log)[-MOST_LINES:]])

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_end, animate=False)


class SampleLines(Lines):
    """What the model writes, the newest at the top."""

    BORDER_TITLE = "samples"

    def show_view(self, view: View) -> None:
        """Show the view's newest samples."""
        newest = view.samples[-1] if view.samples else None
        if (told := (newest, len(view.samples))) == self._told:
            return
        self._told = told
        parts = []
        for sample in list(view.samples)[: -MOST_SAMPLES - 1 : -1]:
            head = Content.styled(f"step {sample.step:,}", theme.DIM)
            prompt = "" if sample.text.startswith(sample.prompt) else sample.prompt
            body = Content.assemble((prompt, theme.DIM), (sample.text.rstrip(), theme.TEXT))
            parts.append(Content.assemble(head, "\n", body))
        self._text.update(Content("\n\n").join(parts))
