"""Replacements for terminals without colours, or without characters beyond ASCII."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

#: Darker text than this (0 to 255) becomes dim; a lighter background becomes reverse video.
DIM, LIT = 0xB0, 0x40
#: Dots of a braille cell by their bit: the upper and lower half, the left and right column, the two middle rows.
UPPER, LOWER, LEFT, RIGHT, MIDDLE = 0b00011011, 0b11100100, 0b01000111, 0b10111000, 0b00110110
#: Dots from which a cell counts as filled.
FILLED = 7
ASCII = {
    **dict.fromkeys("─━╌╍┄┅┉╴╶╸╺╼╾═–—−▔", "-"),
    **dict.fromkeys("│┃╎╏┆┇┊┋╵╷╹╻╽╿║▏▎▍▌▐▕▊▉‖", "|"),
    **dict.fromkeys("▁▂▃▄", "_"), **dict.fromkeys("░·•…", "."), "▒": ":", "▀": "'", "−": "-", "Δ": "d",
    "←": "<", "→": ">", "↑": "^", "↓": "v", "▲": "^", "▼": "v", "△": "^", "▽": "v", "◀": "<", "▶": ">",
    "▴": "^", "▾": "v", "▸": ">", "»": "=", "◦": "o", "◉": "*",
    "●": "*", "◆": "*", "★": "*", "◍": "@", "◌": "o", "○": "o", "◇": "o", "■": "#", "□": "o", "✓": "+", "✗": "x",
    "⏎": "<", "┈": " ", "°": " ", "×": "x", "≥": ">", "≤": "<", "≈": "~", "␊": "\\",
    **dict.fromkeys("‘’", "'"), **dict.fromkeys("“”", '"'),
}  # fmt: skip


class Colorless(LineFilter):
    """No colour at all. What colour told of shades and of the chosen row is told by dim text and reverse video."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, _colorless(style) if style else style, control) for text, style, control in segments]


class Ascii(LineFilter):
    """ASCII alone, in as many cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text if control else ascii_of(text), style, control) for text, style, control in segments]


def ascii_of(text: str) -> str:
    """`text` in ASCII, as wide in cells: a sign like it where there is one, else `?`."""
    if text.isascii() and text.isprintable():
        return text
    width = cell_len(text)
    return "".join(map(_character, text)).ljust(width, "?")[:width]


def wants_ascii(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal is said to take ASCII only: by TRAINKIT_ASCII (1 or 0), else by the locale.

    A locale that nobody has set says nothing. Python itself sets LC_CTYPE where LANG is C (PEP 538): that counts not.
    """
    if said := environment.get("TRAINKIT_ASCII", ""):
        return said != "0"
    lang = environment.get("LANG", "")
    of_type = "" if lang in ("C", "POSIX") else environment.get("LC_CTYPE", "")
    locale = environment.get("LC_ALL", "") or of_type or lang
    return bool(locale) and "utf8" not in locale.lower().replace("-", "")


@lru_cache(4096)
def _character(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else ""
    code, width = ord(character), cell_len(character)
    if 0x2800 <= code < 0x2900:
        return _braille(code - 0x2800)
    if found := ASCII.get(character):
        return found
    if 0x2500 <= code < 0x2580:
        return "+"
    if 0x2580 <= code < 0x25A0:
        return "#"
    letter = unicodedata.normalize("NFKD", character)[0]
    return letter if letter.isascii() and letter.isprintable() and width == 1 else "?" * width


def _braille(dots: int) -> str:
    if dots.bit_count() >= FILLED:
        return "#"
    if not dots:
        return " "
    if not dots & ~MIDDLE:
        return "-"
    if not dots & UPPER:
        return "."
    if not dots & LOWER:
        return "'"
    if not dots & LEFT or not dots & RIGHT:
        return "|"
    left, right = dots & LEFT, dots & RIGHT
    if not left & LOWER and not right & UPPER:
        return "\\"
    return "/" if not left & UPPER and not right & LOWER else ":"


@lru_cache(4096)
def _colorless(style: Style) -> Style:
    lit = _brightness(style.bgcolor, 0) >= LIT
    return Style(
        bold=style.bold,
        dim=True if not lit and _brightness(style.color, 255) < DIM else style.dim,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=bool(style.reverse) != lit or None,
        meta=style.meta,
    )


def _brightness(color: RichColor | None, default: int) -> int:
    return default if color is None or color.is_default else max(color.get_truecolor())
