"""A run in the foreground, as lines: for pipes, schedulers and files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from trainkit.events.plain_log import PlainLog, as_json
from trainkit.events.schema import Event
from trainkit.run.process import LOG


class EventPrinter:
    """Called with each event, prints what a person should read of it, or all of it as JSON; `trainer.log` gets it too.

    A reader that has gone away does not end the run.
    """

    def __init__(self, directory: Path, *, as_json: bool) -> None:
        self._plain = None if as_json else PlainLog()
        self._path = directory / LOG
        self._reader_is_there = True

    def __enter__(self) -> Self:
        # without a buffer, in which something would be left that a full disk refuses a second time
        self._file = self._path.open("ab", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, event: Event) -> None:
        for line in self._plain.feed(event) if self._plain else [as_json(event)]:
            self._file.write(f"{line}\n".encode(errors="replace"))
            if self._reader_is_there:
                try:
                    print(line, flush=True)
                except BrokenPipeError:
                    self._reader_is_there = False
                    sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - the interpreter flushes stdout when it exits
