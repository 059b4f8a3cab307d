"""The console script. A process imports it before the rest of trainkit, so that Ctrl-C never prints a traceback.

Only a Ctrl-C while the interpreter itself starts comes too early for it.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a moment, in which Ctrl-C would print a traceback
    from types import FrameType
    from typing import NoReturn

#: The exit code of `trainkit.errors`, which is not imported yet.
INTERRUPTED = 130


def end(number: int, frame: FrameType | None) -> None:
    """End the process at once: nothing but imports has run, so there is nothing to unwind, and C code would turn an
    exception within an import into another error."""
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a script's background jobs ignore it
    signal.signal(signal.SIGINT, end)


def program() -> NoReturn:
    """Run the command in `sys.argv`, and end the process with its exit code."""
    from trainkit import cli

    try:
        cli.program()
    except KeyboardInterrupt:  # another Ctrl-C, while the process ended
        os._exit(INTERRUPTED)
