"""Lines of the log that the disk refuses for now: they are kept in memory, in order, until it takes them."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable

from trainkit.events.schema import Event
from trainkit.text import format_bytes, format_duration

#: Errors of a disk that may accept the same bytes later: a person makes room, or the server answers again.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ETIMEDOUT, errno.ESTALE)
#: Bytes of lines that are kept at most: those of some 50,000 steps.
MOST = 64 << 20


class HeldLines:
    """The events that are not in the log yet, oldest first."""

    def __init__(self) -> None:
        #: Whether lines are kept if the disk refuses; otherwise its error is raised.
        self.keeps = False
        #: Why the disk refused the oldest line; None while all lines are written.
        self.problem: OSError | None = None
        self._lines: deque[tuple[Event, bytes]] = deque()
        self._bytes, self._most, self._since = 0, 0, 0.0

    def add(self, event: Event, line: bytes) -> None:
        """Add the next event and its line."""
        self._lines.append((event, line))
        self._bytes += len(line)

    def write(self, append: Callable[[Event, bytes], None]) -> str | None:
        """Call `append` with each event; return a message if lines are kept from now on, or no longer.

        Raises OSError, and forgets the newest line, if the disk refuses and lines are not kept or are too many.
        """
        try:
            while self._lines:
                append(*self._lines[0])
                self._bytes -= len(self._lines.popleft()[1])
        except OSError as error:
            if not self.keeps or error.errno not in PASSING or self._bytes > MOST:
                self._bytes -= len(self._lines.pop()[1])
                raise
            return self._keep(error)
        if self.problem is None:
            return None
        seconds, self.problem = time.monotonic() - self._since, None
        return f"the log is written again, with the {self._most} events of the last {format_duration(seconds)}"

    def _keep(self, error: OSError) -> str | None:
        is_first, self.problem = self.problem is None, error
        self._most = len(self._lines)
        if not is_first:
            return None
        self._since = time.monotonic()
        reason = os.strerror(error.errno or 0)
        return f"the log cannot be written: {reason}; training continues, and up to {format_bytes(MOST)} of it is kept"
