"""Text that scrolls: the log and the samples. All of it is inert, none of it markup."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.events.view import Line, View

#: The colour of each level, the lowest first.
LEVELS = {"info": theme.TEXT, "warning": theme.WARN, "error": theme.BAD}
#: Lines and samples that are laid out; the rest is in the log file.
MOST_LINES, MOST_SAMPLES = 200, 12
#: Cells of the time before a line of the log, and of a panel from which what is wrapped stands below the text alone.
CLOCK, WIDE = 9, 40


class Paragraphs(Widget):
    """Lines of text, as high as they are; where one is wrapped, the rest of it stands `indent` cells to the right."""

    DEFAULT_CSS = "Paragraphs { width: 1fr; height: auto; }"

    def __init__(self, *, indent: int = 0) -> None:
        super().__init__()
        self._lines: Sequence[Content] = ()
        self._indent = indent
        self._wrapped: tuple[int, list[Content]] = 0, []

    def show(self, lines: Sequence[Content]) -> None:
        """Show these."""
        self._lines, self._wrapped = lines, (0, [])
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._at(width))

    def render(self) -> Content:
        return Content("\n").join(self._at(self.size.width))

    def _at(self, width: int) -> list[Content]:
        """The lines on the screen, each of at most `width` cells."""
        if width < 1:
            return []
        if self._wrapped[0] != width:
            indent = self._indent if width >= WIDE else 0
            self._wrapped = width, [part for line in self._lines for part in _hanging(line, indent, width)]
        return self._wrapped[1]


class Lines(VerticalScroll, can_focus=False):
    """A panel of text."""

    DEFAULT_CSS = "Lines { height: 1fr; width: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }"

    def __init__(self, *, id: str, indent: int = 0) -> None:
        """`indent`: cells before what is wrapped."""
        super().__init__(id=id)
        self._text = Paragraphs(indent=indent)
        self._told: object = None
        #: Whether the last line was in sight, and is to be after a resize.
        self._follows = False

    def compose(self) -> ComposeResult:
        yield self._text

    @property
    def at_end(self) -> bool:
        """Whether the last line is in sight."""
        return self.scroll_offset.y >= self.max_scroll_y - 1

    def show(self, lines: Sequence[Content], *, follow: bool = True) -> None:
        """Show these lines; the last is in sight, unless somebody has scrolled up or it is not to be followed."""
        self._follows = follow and self.at_end
        self._text.show(lines)
        if self._follows:
            self.call_after_refresh(self.scroll_end, animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follows = self.at_end

    def on_resize(self) -> None:
        if self._follows:
            self.call_after_refresh(self.scroll_end, animate=False)


def log_line(line: Line) -> Content:
    """A line of the log with its time, of `CLOCK` cells, in the colour of its level."""
    clock = time.strftime("%H:%M:%S ", time.localtime(line.t))
    return Content.assemble((clock, theme.DIM), (line.text, LEVELS[line.level]))


class LogLines(Lines):
    """What happened, the newest at the bottom, in sight unless somebody has scrolled up."""

    BORDER_TITLE = "log"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, indent=CLOCK)

    def show_view(self, view: View) -> None:
        """Show the view's newest lines."""
        if (told := (view.told, len(view.log))) == self._told:
            return
        self._told = told
        self.show([log_line(line) for line in list(view.log)[-MOST_LINES:]])


class SampleLines(Lines):
    """What the model writes, the newest at the top."""

    BORDER_TITLE = "samples"

    def show_view(self, view: View) -> None:
        """Show the view's newest samples."""
        newest = view.samples[-1] if view.samples else None
        if (told := (newest, len(view.samples))) == self._told:
            return
        self._told = told
        lines: list[Content] = []
        for sample in list(view.samples)[: -MOST_SAMPLES - 1 : -1]:
            lines += [Content("")] if lines else []
            lines.append(Content.styled(f"step {sample.step:,}", theme.DIM))
            prompt = "" if sample.text.startswith(sample.prompt) else sample.prompt
            lines.append(Content.assemble((prompt, theme.DIM), (sample.text.rstrip(), theme.TEXT)))
        self._text.show(lines)


def _hanging(line: Content, indent: int, width: int) -> list[Content]:
    """The line on so many cells as it needs, all but the first `indent` of them cells to the right."""
    first, *more = line[indent:].wrap(width - indent)
    return [Content.assemble(line[:indent], first), *(Content.assemble(" " * indent, part) for part in more)]
