"""The console script, and the first of trainkit that a process imports: from here on Ctrl-C leaves no traceback.

Only the interpreter's own start comes before.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a moment, in which Ctrl-C would be a traceback
    from types import FrameType
    from typing import NoReturn

#: As in `trainkit.errors`, which is not imported yet.
INTERRUPTED = 130


def end(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C while nothing but imports has run: there is nothing to unwind, and C code would turn an exception
    within an import into another error."""
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as in a script's background
    signal.signal(signal.SIGINT, end)


def program() -> NoReturn:
    """Run the command in `sys.argv`, and end the process with its exit code."""
    from trainkit import cli

    try:
        cli.program()
    except KeyboardInterrupt:  # a further one, in the moment in which the process ended
        os._exit(INTERRUPTED)
