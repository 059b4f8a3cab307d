"""The dashboard's colours, in one place: one hue for one thing, everywhere.

The names below are variables of the themes, for the style sheet and for `Content`; code that draws cells itself calls
`rich_style`. The colour-blind theme has the colours of Okabe and Ito ("Color Universal Design", 2008), which people who
confuse red and green can distinguish; its vermilion is a little lighter, to be legible on the background. Plain has no
colours.

The filters replace colours, or characters beyond ASCII, for terminals without them.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from rich.cells import cell_len
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

GROUND, EDGE, FAINT = "$ground", "$edge", "$faint"
DIM, TEXT, BRIGHT = "$dim", "$ink", "$bright"

TRAIN, TRAIN_BAND = "$train", "$train-band"
VALIDATION = ("$validation-1", "$validation-2", "$validation-3", "$validation-4")
RATE = "$rate"
NORM, NORM_BAND = "$norm", "$norm-band"
SPEED, SPEED_BAND = "$speed", "$speed-band"

GOOD, BUSY, WARN, BAD = "$good", "$busy", "$warn", "$bad"

#: state -> (symbol, colour)
STATES = {
    "waiting": ("○", DIM),
    "starting": ("◌", BUSY),
    "caching": ("◌", BUSY),
    "compiling": ("◌", BUSY),
    "running": ("●", GOOD),
    "evaluating": ("●", BUSY),
    "saving": ("●", BUSY),
    "paused": ("‖", WARN),
    "stopping": ("◍", WARN),
    "stalled": ("▲", WARN),
    "crashed": ("✗", BAD),
    "finished": ("✓", GOOD),
    "stopped": ("■", WARN),
    "interrupted": ("■", WARN),
    "failed": ("✗", BAD),
}

_DARK = {
    "ground": "#0e1216", "raised": "#151b21", "chosen": "#2a343e", "edge": "#2a343e", "faint": "#3b4855",
    "dim": "#8f9eac", "ink": "#cdd6df", "bright": "#f2f6fa",
    "train": "#5fb3f9", "train-band": "#27506f",
    "validation-1": "#ffb454", "validation-2": "#f78fb3", "validation-3": "#e6db74", "validation-4": "#9ee8d6",
    "rate": "#5fd3bc", "norm": "#b99cff", "norm-band": "#4b4070", "speed": "#95d475", "speed-band": "#3a5a35",
    "good": "#95d475", "busy": "#5fb3f9", "warn": "#ffb454", "bad": "#ff6b6b",
}  # fmt: skip
_LIGHT = {
    "ground": "#fbfaf7", "raised": "#f0eee8", "edge": "#d4d0c6", "chosen": "#e4e1d9", "faint": "#b9b4a8",
    "dim": "#5a564f", "ink": "#33312c", "bright": "#000000",
    "train": "#0a5fb4", "train-band": "#a9cbea",
    "validation-1": "#9d4e00", "validation-2": "#b3246a", "validation-3": "#726200", "validation-4": "#006f64",
    "rate": "#006f62", "norm": "#6a3fc0", "norm-band": "#cfc0ee", "speed": "#366e11", "speed-band": "#c3ddb0",
    "good": "#366e11", "busy": "#0a5fb4", "warn": "#9d4e00", "bad": "#c4161c",
}  # fmt: skip
_COLOR_BLIND = {
    **_DARK, "chosen": "#1b232a",
    "train": "#56b4e9", "train-band": "#254f66",
    "validation-1": "#e69f00", "validation-2": "#f0e442", "validation-3": "#cc79a7", "validation-4": "#ffffff",
    "rate": "#009e73", "norm": "#cc79a7", "norm-band": "#5a3a4c", "speed": "#009e73", "speed-band": "#0a4636",
    "good": "#56b4e9", "busy": "#56b4e9", "warn": "#f0e442", "bad": "#e57628",
}  # fmt: skip
_PLAIN = {
    **dict.fromkeys(_DARK, "#d0d0d0"), "ground": "#000000", "raised": "#000000", "bright": "#ffffff",
    **dict.fromkeys(("edge", "faint", "chosen"), "#505050"),
    **dict.fromkeys(("dim", "train-band", "norm-band", "speed-band"), "#909090"),
}  # fmt: skip

DEFAULT, PLAIN = "dark", "plain"
THEMES = {
    name: Theme(
        name, primary=colors["train"], warning=colors["warn"], error=colors["bad"], success=colors["good"],
        accent=colors["warn"], foreground=colors["ink"], background=colors["ground"], surface=colors["raised"],
        panel=colors["raised"], dark=name != "light", variables=colors,
    )
    for name, colors in {DEFAULT: _DARK, "light": _LIGHT, "colour-blind": _COLOR_BLIND, PLAIN: _PLAIN}.items()
}  # fmt: skip


def install(app: App[Any]) -> None:
    """Give an application these themes and no others, which lack the names above."""
    for theme in THEMES.values():
        app.register_theme(theme)
    app.theme = DEFAULT
    for name in app.available_themes.keys() - THEMES.keys():
        app.unregister_theme(name)


def rich_style(variables: Mapping[str, str], color: str) -> Style:
    """The style of a cell in one of the colours above; `variables` are those of the application's theme."""
    return _style(variables[color.removeprefix("$")], variables["ground"])


@cache
def _style(color: str, ground: str) -> Style:
    return Style(color=color, bgcolor=ground)


#: Darker text than this (0 to 255) becomes dim; a lighter background becomes reverse video.
DARK, LIT = 0xB0, 0x40
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
    """No colour at all: dim text and reverse video take the place of shades and of the chosen row's colour."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, _colorless(style) if style else style, control) for text, style, control in segments]


class Ascii(LineFilter):
    """ASCII alone, in the same number of cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text if control else ascii_of(text), style, control) for text, style, control in segments]


def ascii_of(text: str) -> str:
    """Return `text` in ASCII, as many cells wide: a similar sign for each character, or `?`."""
    if text.isascii() and text.isprintable():
        return text
    width = cell_len(text)
    return "".join(map(_character, text)).ljust(width, "?")[:width]


def wants_ascii(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal takes ASCII only, according to TRAINKIT_ASCII (1 or 0) or else to the locale.

    An unset locale decides nothing, nor does the LC_CTYPE that Python itself sets where LANG is C (PEP 538).
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
        dim=True if not lit and _brightness(style.color, 255) < DARK else style.dim,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=bool(style.reverse) != lit or None,
        meta=style.meta,
    )


def _brightness(color: RichColor | None, default: int) -> int:
    return default if color is None or color.is_default else max(color.get_truecolor())
