"""The braces of a pattern: `{a,b}` and `{000..127}`, as a shell expands them."""

from __future__ import annotations

import itertools
import re

from trainkit.errors import TrainkitError
from trainkit.text import shorten

#: The most paths that the braces of one pattern may stand for.
MOST_PATHS = 1_000_000
#: The most braces of a pattern; more than twenty that hold two parts each are more paths than that.
MOST_BRACES = 100
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns of a pattern with braces: `{a,b}` is each part, `{000..127}` each number, padded as written.

    Braces may be nested. Braces that are not closed, or hold neither a comma nor a range, stay as they are, as in a
    shell. Raises TrainkitError if there are more than `MOST_PATHS`.
    """
    if pattern.count("{") > MOST_BRACES:
        raise _too_many(pattern)
    for start in (i for i, c in enumerate(pattern) if c == "{"):
        closing = _find_closing(pattern, start)
        if closing is None:
            continue
        end, commas = closing
        head, inner, tail = pattern[:start], pattern[start + 1 : end], pattern[end + 1 :]
        if commas:
            cuts = [start, *commas, end]
            parts = [pattern[a + 1 : b] for a, b in itertools.pairwise(cuts)]
        elif match := _RANGE.fullmatch(inner):
            parts = _numbers(*match.groups())
        else:
            continue
        rests = expand_braces(tail)
        found: list[str] = []
        for middle in (middle for part in parts for middle in expand_braces(part)):
            if len(found) + len(rests) > MOST_PATHS:
                raise _too_many(pattern)
            found += [head + middle + rest for rest in rests]
        return found
    return [pattern]


def _too_many(pattern: str) -> TrainkitError:
    return TrainkitError(
        f"its braces stand for more than {MOST_PATHS:,} paths",
        where=shorten(pattern),
        hint="write * for what varies, or narrow the range",
    )


def _find_closing(pattern: str, start: int) -> tuple[int, list[int]] | None:
    """Return where the brace that opens at `start` closes, and the places of its own commas."""
    depth = 0
    commas: list[int] = []
    for i in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[i], 0)
        if depth == 0:
            return i, commas
        if pattern[i] == "," and depth == 1:
            commas.append(i)
    return None


def _numbers(first: str, last: str) -> list[str]:
    padded = any(len(text.lstrip("-")) > 1 and text.lstrip("-").startswith("0") for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    if width > 20 or max(len(first), len(last)) > 20 or abs(int(last) - int(first)) > MOST_PATHS:
        raise _too_many(f"{{{first}..{last}}}")
    a, b = int(first), int(last)
    return [f"{n:0{width}d}" for n in range(a, b + (1 if a <= b else -1), 1 if a <= b else -1)]
