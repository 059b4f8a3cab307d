"""A command that stands still at an event of its log, so that a test need not be quicker than it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from places import SUPPORT

#: The environment variable that names the event, such as "step 3" or "checkpoint_saved 6".
HELD_AT = "TRAINKIT_TESTS_HELD_AT"


def hold() -> None:
    """Stop this process, as SIGSTOP does, right after it has logged the event that the environment names, if any."""
    if not (named := os.environ.pop(HELD_AT, "")):
        return
    from trainkit.events.log import EventLog

    (held_kind, number), write = named.split(), EventLog.write

    def write_and_stop(log: EventLog, kind: str, /, *, step: int, **fields: Any) -> None:
        write(log, kind, step=step, **fields)
        if (kind, step) == (held_kind, int(number)):
            EventLog.write = write  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGSTOP)

    EventLog.write = write_and_stop  # type: ignore[method-assign]


def held_command(*arguments: str, program: str = "from trainkit.cli import program\nprogram()") -> list[str]:
    """Return a command of trainkit, or of another program, that stands still at the event named by `HELD_AT`."""
    first = f"import sys\nsys.path.append({str(SUPPORT)!r})\nfrom held import hold\nhold()\n"
    return [sys.executable, "-c", first + program, *arguments]
