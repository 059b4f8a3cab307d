"""Text for people: what a terminal must not obey, and numbers, sizes, durations and lists as words."""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Sequence

#: Unicode's zero-width non-joiner and joiner.
_APART, _JOINED = "\u200c", "\u200d"


def neutralise(text: str, *, flowing: bool = False) -> str:
    """Return `text` without anything that a terminal would obey.

    Control characters become their pictures (ESC is `␛`), other characters without a shape of their own, such as those
    that turn the direction of writing, become `�`. Line feeds stay.

    So does U+200C, which keeps letters apart, between two that are not ASCII: Persian is written with it. U+200D, which
    joins letters and emoji, stays between such only where the text is `flowing`, and not on a screen whose cells are
    counted: terminals differ in how many a joined one takes.
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    if text.isprintable():
        return text
    kept = _APART + _JOINED if flowing else _APART
    return "".join(
        c if c == "\n" or c.isprintable() or (c in kept and _between_letters(text, i)) else _picture(c)
        for i, c in enumerate(text)
    )


class Neutral(str):
    """Text in which every part from outside is neutral already, such as lines with colours of trainkit's own."""


def one_line(text: str) -> str:
    """Return `text` neutralised, with line feeds as `␊`."""
    return neutralise(text).replace("\n", "␊")


class NeutralStream:
    """Neutralises a flowing text that comes in pieces; the pieces add up to the whole text, neutralised."""

    def __init__(self) -> None:
        #: The last character returned, and the end of the last piece, whose meaning the next piece decides.
        self._before = self._held = ""

    def add(self, piece: str) -> str:
        """Return the next piece, neutralised. What its end holds back for the next one is never visible."""
        text = self._held + piece
        ready = text.rstrip("\r" + _APART + _JOINED)
        self._held = text[len(ready) :]
        if not ready:
            return ""
        told = neutralise(self._before + ready, flowing=True)[len(self._before) :]
        self._before = ready[-1] if ready[-1].isprintable() else ""
        return told


def _between_letters(text: str, i: int) -> bool:
    """Whether the characters beside this one are letters, marks of them or emoji, and none of ASCII's."""
    beside = text[max(0, i - 1) : i] + text[i + 1 : i + 2]
    return len(beside) == 2 and all(
        not c.isascii() and (unicodedata.category(c)[0] in "LM" or unicodedata.category(c) in ("So", "Sk"))
        for c in beside
    )


def _picture(c: str) -> str:
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return " " if c.isspace() and code not in (0x85, 0x2028, 0x2029) else "�"


def format_duration(seconds: float) -> str:
    """Two units at most: `0.3 s`, `42 s`, `3m 05s`, `2h 07m`, `5d 03h`."""
    if seconds < 9.95 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part:02d}{below}"
    return f"{whole} s"


def format_count(value: float) -> str:
    """Three or four digits and a unit: `950`, `4,096`, `11.1k`, `3.20M`, `1.45B`."""
    if not math.isfinite(value):
        return str(value)
    if 1e3 <= abs(value) < 1e4:
        return f"{value:,.0f}"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def format_bytes(value: float) -> str:
    """Bytes in powers of 1000: `38.2 MB`."""
    for unit, size in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def format_quantity(value: float) -> str:
    """A loss or a norm, to about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:.2e}"


def format_time(t: float) -> str:
    """Return the local date and time of `t`, in Unix seconds; the number itself where it is no time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
    except (ValueError, OverflowError, OSError):
        return str(t)


def plural(number: int, noun: str) -> str:
    """Return `1 device`, `2 devices`, `1,024 devices`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, width: int = 60) -> str:
    """Return `text`, cut to `width` characters with a `…` at the end where it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with columns as wide as their widest cell. All rows have the same length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
