"""One sample: its text, its predictions with bars, and its image, drawn as well as the terminal can.

Terminals with Kitty's or Sixel's graphics get textual-image's widget, which asks the terminal what it can do; the
others get half blocks, or shades where there are no colours.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import sys
import warnings
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from trainkit.dashboard import theme
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

    def show(self, title: str, text: Content, image: Image.Image | str = "") -> None:
        """Show a text, and an image or the reason why there is none; an empty `image` shows neither."""
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
        self._image: Image.Image | str = ""
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield self._blocks
        if not self.app.is_headless and (drawing := graphics()) is not None:
            self._graphics = drawing()
            yield self._graphics

    def show(self, image: Image.Image | str, *, width: int, height: int) -> None:
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
            cells = size_in_cells(image, width, height)
            if drawn:
                self._graphics.styles.width, self._graphics.styles.height = cells
                self._graphics.image = image
            else:
                self._blocks.update(blocks(image, *cells, colors=colors))


def text_of(sample: SampleText) -> Content:
    """Return the prompt, dim, and the text of the model. A prompt that the text repeats appears once; a recognised
    label has a line of its own."""
    prompt, text = sample.prompt, sample.text
    made = text[len(prompt) :] if text.startswith(prompt) else text
    recognised = bool(sample.image or sample.predictions) and bool(made)
    return Content.assemble((prompt, theme.DIM), "\n" if recognised else "", (made.rstrip(), theme.BRIGHT))


def prediction_lines(sample: SampleText) -> list[Content]:
    """Return the most likely labels with bars, one a line, and the expected label. ✓ and ✗ mark a right and a wrong
    choice, ○ the label that would have been right."""
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
        note = ("  expected" if right else "", theme.DIM)
        lines.append(Content.assemble((f"{sign} ", color), name, " ", *bar, (share, theme.TEXT), note))
    return lines


#: Bytes of a file that is read, pixels of an image that is decoded, and pixels of a side that are kept of it.
MOST_BYTES, MOST_PIXELS, SIDE = 1 << 24, 1 << 24, 1024
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
#: What decoding a damaged file may raise.
DAMAGED = (
    OSError, ValueError, SyntaxError, TypeError, LookupError, EOFError, ArithmeticError, MemoryError, struct.error,
    zlib.error,
)  # fmt: skip
#: From dark to light, where there are no colours.
SHADES = " ░▒▓█"
#: Terminals that may draw images, by what they set. Others are not asked: a terminal that does not understand the
#: question would show it, and the next key would count as the answer.
TERMS = frozenset({"xterm-kitty", "xterm-ghostty", "foot", "foot-extra", "mlterm", "contour"})
PROGRAMS = frozenset({"WezTerm", "iTerm.app", "ghostty", "mintty"})


def read_image(run_directory: Path, path: str) -> Image.Image | str:
    """Return the image at a path within the run's directory in RGB, made smaller if large; or why there is none."""
    try:
        root = run_directory.resolve()
        where = (root / path).resolve()
        if not where.is_relative_to(root):
            return "it is outside the run's directory"
        data = _bytes(where)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    if isinstance(data, str):
        return data
    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(BytesIO(data), formats=FORMATS) as image,
        ):
            if image.width * image.height > MOST_PIXELS:
                return f"it is too large to show: {image.width} x {image.height}"
            small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            return small
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return "it is too large to show"
    except DAMAGED:
        return f"it is not a readable image; readable formats are {', '.join(FORMATS)}"


def _bytes(path: Path) -> bytes | str:
    """Return the contents of a regular file without blocking, or why there are none. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return "it is not a file"
        if found.st_size > MOST_BYTES:
            return f"it is too large to show: {found.st_size / 1e6:.0f} MB"
        return file.read(MOST_BYTES)


def size_in_cells(image: Image.Image, width: int, height: int) -> tuple[int, int]:
    """(columns, lines) of an image that is as large as fits in so many cells, of which each is two pixels high; it is
    not made larger."""
    scale = min(1.0, width / image.width, 2 * height / image.height)
    return max(1, round(scale * image.width)), max(1, round(scale * image.height / 2))


def blocks(image: Image.Image, width: int, height: int, *, colors: bool) -> Content:
    """The image in so many cells: half blocks in two colours each, or shades."""
    if not colors:
        grey = image.convert("L").resize((width, height)).tobytes()
        rows = [grey[place : place + width] for place in range(0, len(grey), width)]
        return Content("\n".join("".join(SHADES[value * len(SHADES) // 256] for value in row) for row in rows))
    data = image.resize((width, 2 * height)).tobytes()
    pixels = [data[place : place + 3] for place in range(0, len(data), 3)]
    lines = [pixels[place : place + width] for place in range(0, len(pixels), width)]
    return Content("\n").join(
        _half_blocks(zip(*pair, strict=True)) for pair in zip(lines[::2], lines[1::2], strict=True)
    )


def _half_blocks(cells: Iterable[tuple[bytes, bytes]]) -> Content:
    parts = []
    for (upper, lower), alike in groupby(cells):
        style = f"rgb({upper[0]},{upper[1]},{upper[2]}) on rgb({lower[0]},{lower[1]},{lower[2]})"
        parts.append(("▀" * len(list(alike)), style))
    return Content.assemble(*parts)


def may_draw(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal may draw images. Through a multiplexer it cannot."""
    if environment.get("TMUX") or environment.get("STY"):
        return False
    hinted = environment.get("KITTY_WINDOW_ID") or environment.get("KONSOLE_VERSION")
    return bool(hinted) or environment.get("TERM") in TERMS or environment.get("TERM_PROGRAM") in PROGRAMS


@cache
def graphics() -> type[Widget] | None:
    """Return textual-image's widget if the terminal draws images, otherwise None. The first call asks the terminal, so
    it must come before an application runs in it."""
    streams = (sys.__stdin__, sys.__stdout__)
    if not may_draw() or not all(stream is not None and stream.isatty() for stream in streams):
        return None
    try:
        from textual_image import renderable, widget
    except Exception:  # whatever an odd terminal answers, the run can be watched
        return None
    drawing: Any = renderable.Image
    return widget.Image if drawing in (renderable.TGPImage, renderable.SixelImage) else None
