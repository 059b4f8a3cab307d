"""The one way to a terminal: what is printed has no control characters and no secrets, and messages have a length.

Everything that trainkit prints passes `show` or `complain`; ruff refuses `print` elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from trainkit.redaction import redact
from trainkit.text import Neutral, neutralise

#: The most characters of a line of a message, and the most lines of it.
LONGEST_LINE, MOST_LINES = 2_000, 400


def show(text: str, *, end: str = "\n") -> None:
    """Print a result on stdout. `Neutral` text, which was neutralised in parts, is printed as it is."""
    print(harmless(text), end=end, flush=True)  # noqa: T201


def complain(message: str) -> None:
    """Print a message on stderr: a note, a warning, progress or an error, with long lines and long lists shortened.

    A stderr that takes no more, as on a full disk or where the terminal has gone, ends nothing.
    """
    with contextlib.suppress(OSError):
        print(shorten_message(harmless(message, flowing=True)), file=sys.stderr, flush=True)  # noqa: T201


def shorten_message(message: str) -> str:
    """Return a message with at most `MOST_LINES` lines of at most `LONGEST_LINE` characters."""
    lines = message.split("\n")
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half:,} lines are left out …", *lines[-half:]]
    return "\n".join(map(_shorten_line, lines))


def printable_json(value: Any) -> Neutral:
    """Return JSON on one line, without characters that a terminal would obey; reading it gives the value."""
    import json  # it takes a while, and `trainkit --help` prints none

    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return Neutral(text)


def quote(text: str | Path) -> str:
    """Return a text as a shell reads it back: unchanged where it has no character that a shell obeys."""
    import shlex  # as above

    return shlex.quote(os.fspath(text))


def harmless(text: str, *, flowing: bool = False) -> str:
    """Return a text without what a terminal obeys and without secrets; `flowing` as in `text.neutralise`."""
    return text if isinstance(text, Neutral) else neutralise(redact(text), flowing=flowing)


def _shorten_line(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]} … {len(line) - 2 * half:,} characters are left out … {line[-half:]}"
