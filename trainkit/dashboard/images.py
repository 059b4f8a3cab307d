"""Images of samples: read with care, and drawn as the terminal can.

Kitty's and Sixel's graphics are textual-image's, which asks the terminal what it can; half blocks, and shades where
there are no colours, are drawn here, also where there is no terminal.
"""

from __future__ import annotations

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
from textual.content import Content
from textual.widget import Widget

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
#: Terminals that may draw images, by what they set; any other is not even asked: whatever did not understand the
#: question would show it, and the next key would be taken for the answer.
TERMS = frozenset({"xterm-kitty", "xterm-ghostty", "foot", "foot-extra", "mlterm", "contour"})
PROGRAMS = frozenset({"WezTerm", "iTerm.app", "ghostty", "mintty"})


def read(run_directory: Path, path: str) -> Image.Image | str:
    """The image at a path within the run's directory, in RGB, made smaller where it is large; or why there is none."""
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
    """What is in a regular file; of anything else, in words what it is. Waits for nobody. Raises OSError."""
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
    """Whether the terminal is one that may draw images. A multiplexer between it and us passes none on."""
    if environment.get("TMUX") or environment.get("STY"):
        return False
    hinted = environment.get("KITTY_WINDOW_ID") or environment.get("KONSOLE_VERSION")
    return bool(hinted) or environment.get("TERM") in TERMS or environment.get("TERM_PROGRAM") in PROGRAMS


@cache
def graphics() -> type[Widget] | None:
    """textual-image's widget where the terminal draws images, else None. Asks the terminal the first time: to be
    called before an application runs in it."""
    streams = (sys.__stdin__, sys.__stdout__)
    if not may_draw() or not all(stream is not None and stream.isatty() for stream in streams):
        return None
    try:
        from textual_image import renderable, widget
    except Exception:  # whatever an odd terminal answers, the run can be watched
        return None
    drawing: Any = renderable.Image
    return widget.Image if drawing in (renderable.TGPImage, renderable.SixelImage) else None
