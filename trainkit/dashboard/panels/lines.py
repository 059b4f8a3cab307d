"""Text that scrolls: the log and the samples. It is neutralised and never read as markup."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from trainkit.dashboard import theme
from trainkit.events.view import LogLine, View

#: The colour of each level, the lowest first.
LEVELS = {"info": theme.TEXT, "warning": theme.WARN, "error": theme.BAD}
#: Lines and samples that are laid out; the rest is in the log file.
MOST_LINES, MOST_SAMPLES = 200, 12
#: Cells of the time before a line of the log; the width from which the rest of a wrapped line is indented.
CLOCK, WIDE = 9, 40


class Paragraphs(Widget):
    """Lines of text of any number; the continuation of a wrapped line is indented by `indent` cells.

    There are hundreds of lines, which change one at a time: known lines are not wrapped again, and only visible rows
    are drawn.
    """

    DEFAULT_CSS = "Paragraphs { width: 1fr; height: auto; }"

    def __init__(self, *, indent: int = 0) -> None:
        super().__init__()
        self._lines: Sequence[Content] = ()
        self._indent = indent
        #: What was laid out last: the lines, the width, and the rows on the screen.
        self._wrapped: tuple[Sequence[Content], int, list[Content]] = (), 0, []
        #: The rows of each of its lines, by text and colours.
        self._rows: dict[tuple[object, ...], list[Content]] = {}

    def show(self, lines: Sequence[Content]) -> None:
        """Replace the lines."""
        width = self.size.width
        height, self._lines = len(self._at(width)), lines
        self.refresh(layout=width < 1 or len(self._at(width)) != height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._at(width))

    def render(self) -> Content:
        return Content("\n").join(self._at(self.size.width))

    def render_line(self, y: int) -> Strip:
        rows, width = self._at(self.size.width), self.size.width
        if y >= len(rows) or self.text_selection is not None:
            return super().render_line(y)
        drawn = Visual.to_strips(self, rows[y], width, 1, self.visual_style)
        return drawn[0].apply_offsets(0, y) if drawn else Strip.blank(width, self.visual_style.rich_style)

    def _at(self, width: int) -> list[Content]:
        """The lines on the screen, each of at most `width` cells."""
        if width < 1:
            return []
        lines, of_width, _ = self._wrapped
        if of_width != width:
            self._rows.clear()
        if lines is not self._lines or of_width != width:
            indent, before = self._indent if width >= WIDE else 0, self._rows
            keys = [(line.plain, *line.spans) for line in self._lines]
            self._rows = {
                key: before.get(key) or _hanging(line, indent, width)
                for key, line in zip(keys, self._lines, strict=True)
            }
            self._wrapped = self._lines, width, [row for key in keys for row in self._rows[key]]
        return self._wrapped[2]


class TextPanel(VerticalScroll, can_focus=False):
    """A panel of text."""

    DEFAULT_CSS = "TextPanel { height: 1fr; width: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }"

    def __init__(self, *, id: str, indent: int = 0) -> None:
        """`indent`: cells before what is wrapped."""
        super().__init__(id=id)
        self._text = Paragraphs(indent=indent)
        self._drawn: object = None
        #: Whether the last line was visible, and must be after a resize.
        self._follows = False

    def compose(self) -> ComposeResult:
        yield self._text

    @property
    def at_end(self) -> bool:
        """Whether the last line is visible."""
        return self.scroll_offset.y >= self.max_scroll_y - 1

    def show(self, lines: Sequence[Content], *, follow: bool = True) -> None:
        """Show these lines, and the end of them if `follow` is true and nobody has scrolled up."""
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


@lru_cache(maxsize=1 << 10)  # more than a view keeps
def log_line(line: LogLine) -> Content:
    """Return a line of the log after its time (`CLOCK` cells), in the colour of its level."""
    clock = time.strftime("%H:%M:%S ", time.localtime(line.t))
    return Content.assemble((clock, theme.DIM), (line.text, LEVELS[line.level]))


class LogPanel(TextPanel):
    """The log, newest line at the bottom and visible unless a person has scrolled up."""

    BORDER_TITLE = "log"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, indent=CLOCK)

    def show_view(self, view: View, *, now: float) -> None:
        """Show the view's newest lines."""
        if (content := (view.entries, len(view.log))) == self._drawn:
            return
        self._drawn = content
        self.show([log_line(line) for line in list(view.log)[-MOST_LINES:]])


class SamplePanel(TextPanel):
    """The texts that the model writes, the newest at the top."""

    BORDER_TITLE = "samples"

    def show_view(self, view: View, *, now: float) -> None:
        """Show the view's newest samples."""
        newest = view.samples[-1] if view.samples else None
        if (content := (newest, len(view.samples))) == self._drawn:
            return
        self._drawn = content
        lines: list[Content] = []
        for sample in list(view.samples)[: -MOST_SAMPLES - 1 : -1]:
            lines += [Content("")] if lines else []
            lines.append(Content.styled(f"step {sample.step:,}", theme.DIM))
            prompt = "" if sample.text.startswith(sample.prompt) else sample.prompt
            lines.append(Content.assemble((prompt, theme.DIM), (sample.text.rstrip(), theme.TEXT)))
        self._text.show(lines or [Content.styled("no samples", theme.DIM)])


def _hanging(line: Content, indent: int, width: int) -> list[Content]:
    """Return the rows of the line at this width, all but the first indented."""
    first, *more = line[indent:].wrap(width - indent)
    return [Content.assemble(line[:indent], first), *(Content.assemble(" " * indent, part) for part in more)]
