"""One sample: its text, what was prediction_lines with bars, and its image, drawn as the terminal can."""

from __future__ import annotations

import math
from typing import Any

from PIL.Image import Image
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from trainkit.dashboard import images, theme
from trainkit.events import plain_log
from trainkit.events.view import SampleText

#: Lines that an image has at least; cells of a bar of a prediction, and at most of its label.
LEAST_LINES, BAR, LABEL = 4, 20, 28


class Text(VerticalScroll, can_focus=False):
    """A framed text that scrolls, and an image below it."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="framed")
        self._text, self._image = Static("", markup=False), SampleImage()

    def compose(self) -> ComposeResult:
        yield self._text
        yield self._image

    def show(self, title: str, text: Content, image: Image | str = "") -> None:
        """`image` may also be a word on why there is none; empty where none is asked for."""
        self.border_title = Content.styled(title, theme.DIM)
        self._text.update(text)
        room = self.scrollable_content_region
        self._image.show(image, width=room.width, height=max(LEAST_LINES, room.height * 2 // 3))


class SampleImage(Vertical):
    """An image, or a word on why there is none.

    It is drawn with graphics where the terminal has them, else with half blocks, with shades where there are no
    colours.
    """

    DEFAULT_CSS = """
    SampleImage { height: auto; width: 1fr; margin-top: 1; }
    SampleImage > Static { width: auto; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._blocks = Static("", markup=False)
        self._graphics: Any = None
        self._image: Image | str = ""
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield self._blocks
        if not self.app.is_headless and (graphics := images.graphics()) is not None:
            self._graphics = graphics()
            yield self._graphics

    def show(self, image: Image | str, *, width: int, height: int) -> None:
        """Show it in at most so many cells; nothing where it is empty."""
        colors = self.app.theme != theme.PLAIN and not self.app.no_color
        same = image == self._image if isinstance(image, str) else image is self._image
        if same and (width, height, colors) == self._drawn:
            return
        self._image, self._drawn = image, (width, height, colors)
        self.display = bool(image) and width > 0
        drawn = not isinstance(image, str) and self._graphics is not None and colors
        self._blocks.display = not drawn
        if self._graphics is not None:
            self._graphics.display = drawn
        if isinstance(image, str):
            self._blocks.update(Content.styled(image, theme.WARN))
        elif width > 0:
            cells = images.size_in_cells(image, width, height)
            if drawn:
                self._graphics.styles.width, self._graphics.styles.height = cells
                self._graphics.image = image
            else:
                self._blocks.update(images.blocks(image, *cells, colors=colors))


def text_of(sample: SampleText) -> Content:
    """A prompt, dim, and what the model made of it. A text that repeats its prompt has it once; what was recognised is
    no continuation, and has a line of its own."""
    prompt, text = sample.prompt, sample.text
    made = text[len(prompt) :] if text.startswith(prompt) else text
    recognised = bool(sample.image or sample.predictions) and bool(made)
    return Content.assemble((prompt, theme.DIM), "\n" if recognised else "", (made.rstrip(), theme.BRIGHT))


def prediction_lines(sample: SampleText) -> list[Content]:
    """The likeliest labels with bars, one a line, and the expected one wherever it comes: ✓ and ✗ say right and wrong,
    ○ where the right one would have been."""
    first = sample.predictions[0][0] if sample.predictions else ""
    shown = list(sample.predictions[: plain_log.PREDICTIONS])
    if sample.expected and sample.expected not in [label for label, _ in shown]:
        shown += [(sample.expected, dict(sample.predictions).get(sample.expected, math.nan))]
    pad = min(LABEL, max((Content(label).cell_length for label, _ in shown), default=0))
    lines = []
    for label, probability in shown:
        right, chosen = label == sample.expected, label == first
        sign, color = " ", theme.TRAIN
        if sample.expected and (right or chosen):
            sign, color = ("✓", theme.GOOD) if right and chosen else ("✗", theme.BAD) if chosen else ("○", theme.WARN)
        known = math.isfinite(probability)
        full = round(BAR * min(1.0, max(0.0, probability))) if known else 0
        name = Content.styled(label, theme.BRIGHT if chosen else theme.TEXT).truncate(pad, ellipsis=True, pad=True)
        share = f" {probability:6.1%}" if known else "      –"
        bar = ("━" * full, color), ("─" * (BAR - full), theme.EDGE)
        told = ("  expected" if right else "", theme.DIM)
        lines.append(Content.assemble((f"{sign} ", color), name, " ", *bar, (share, theme.TEXT), told))
    return lines
