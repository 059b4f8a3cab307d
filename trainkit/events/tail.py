"""Reading `events.jsonl`: as it grows, whole, by kinds of events, or only its end.

A line torn by a crash is skipped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from trainkit.events.attempts import current_events
from trainkit.events.schema import Event, well_formed

NAME = "events.jsonl"
#: The beginning of the lines of step events, and of no others: `EventLog.write` puts this field first.
STEP = b'{"type": "step"'
#: No line of a trainer is as long; readers skip a longer one in parts, so that it takes no more memory than this.
LONGEST_LINE = 1 << 24


class Tail:
    """Reads a log as it grows: `poll()` returns the events that have been completed since the last call."""

    def __init__(self, run_directory: Path, *, offset: int = 0) -> None:
        self._path = run_directory / NAME
        #: Bytes consumed; a later Tail that starts here continues without a gap.
        self.offset = offset
        #: Whether the last poll found that another log has replaced this one, which must be read from its beginning.
        self.replaced = False
        #: The identity of the log's file when it was last read.
        self._file: tuple[int, int] | None = None

    def poll(self, *, limit_bytes: int = 1 << 24) -> list[Event]:
        """Return new events from about `limit_bytes` of whole lines; empty if nothing is new or the log does not exist
        yet."""
        while True:
            begin = self.offset
            events = [event for _, event in self.poll_with_places(limit_bytes=limit_bytes)]
            if events or self.offset == begin:  # skip lines that hold no event
                return events

    def poll_with_places(self, *, limit_bytes: int) -> list[tuple[int, Event]]:
        """Return the events of `poll`, each with the byte at which its line begins. No line begins beyond the limit."""
        try:
            # most polls find nothing new, and then do not open the file
            if self._as_left(self._path.stat()):
                self.replaced = False
                return []
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                self.replaced = is_replaced(status, self._file, self.offset)
                self._file = file_of(status)
                file.seek(self.offset)
                chunk = file.read(limit_bytes)
                while chunk and b"\n" not in chunk and len(chunk) < LONGEST_LINE:
                    if not (more := file.read(limit_bytes)):
                        break
                    chunk += more
        except FileNotFoundError:
            return []
        begin, end = self.offset, chunk.rfind(b"\n") + 1
        if not end and len(chunk) >= LONGEST_LINE:
            end = len(chunk)
        self.offset += end
        return list(parse(chunk[:end], begin))

    def bytes_left(self) -> int:
        """Return the bytes of the log that have not been consumed."""
        return max(0, _size(self._path) - self.offset)

    def _as_left(self, status: os.stat_result) -> bool:
        return status.st_size == self.offset and self._file == file_of(status)


def file_of(status: os.stat_result) -> tuple[int, int]:
    """Return the identity of a file (device and inode), whatever its name."""
    return status.st_dev, status.st_ino


def is_replaced(status: os.stat_result, file: tuple[int, int] | None, offset: int) -> bool:
    """Return whether another log has replaced the one of which `offset` bytes were read, so that it must be read from
    the start.

    It has if it is another file than `file` (None: never opened), or has become shorter.
    """
    return status.st_size < offset or file not in (None, file_of(status))


def read(run_directory: Path) -> list[Event]:
    """Return all events of a log that count, without torn lines; of steps that a resumed attempt repeated, only its
    own."""
    tail, events = Tail(run_directory), []
    while batch := tail.poll():
        events.extend(batch)
    return current_events(events)


def of_kinds(run_directory: Path, *kinds: str) -> Iterator[Event]:
    """Yield all events of these kinds, of every attempt. Lines of other kinds, possibly millions, are not parsed."""
    marks = [f'"{kind}"'.encode() for kind in kinds]
    try:
        with (run_directory / NAME).open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                if any(mark in line for mark in marks):
                    yield from (event for _, event in parse(line) if event["type"] in kinds)
    except FileNotFoundError:
        return


def last_attempt(run_directory: Path) -> int:
    """Return the number of the attempt that wrote the newest event; 0 without events."""
    return max((event["attempt"] for event in _newest(run_directory)), default=0)


def last_step(run_directory: Path) -> int:
    """Return the last step that the newest attempt has reached; 0 without events."""
    events = _newest(run_directory)
    return max((event["step"] for event in events if event["attempt"] == events[-1]["attempt"]), default=0)


def last_end(run_directory: Path) -> str | None:
    """Return the status with which the newest attempt ended; None if it has not ended, or did not record it."""
    ends = [e for e in _newest(run_directory) if e["type"] in ("run_started", "run_finished")]
    return ends[-1].get("status") if ends else None


def _newest(run_directory: Path) -> list[Event]:
    """Return the last events, at least one if there are any."""
    size, back = _size(run_directory / NAME), 1 << 16
    while True:  # the last line alone may be longer than that
        events = Tail(run_directory, offset=max(0, size - back)).poll(limit_bytes=back)
        if events or back >= size:
            return events
        back *= 8


def number(value: float | int | str) -> float:
    """Return a logged metric as a number: the strings "nan", "inf" and "-inf" become those numbers."""
    return float(value)


def as_logged(value: float | int) -> float | int | str:
    """Return a metric as JSON can hold it; `number` is the inverse."""
    return value if math.isfinite(value) else str(value)


def parse(lines: bytes, begin: int = 0) -> Iterator[tuple[int, Event]]:
    """Yield the events of whole lines, each with the byte at which its line begins; the first begins at `begin`."""
    for line in lines.splitlines(keepends=True):
        place, begin = begin, begin + len(line)
        try:
            event = _DECODER.decode(line.decode())
        except (ValueError, RecursionError):
            continue
        if well_formed(event):
            yield place, event


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_DECODER = json.JSONDecoder(parse_constant=_refuse)
