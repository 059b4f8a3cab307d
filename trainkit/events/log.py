"""Appending to and tailing `events.jsonl`.

A line is written by one unbuffered `write` on a file opened for appending, so it is there for every reader at once, and
survives the death of the process that wrote it. A line torn by a crash is closed by the next writer, and skipped by
readers.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainkit.events.attempts import current_events
from trainkit.events.index import Writer
from trainkit.events.schema import FIELDS, OPTIONAL, Event, well_formed

NAME = "events.jsonl"
#: How the lines begin that tell of a step, and no others: with what `EventLog.write` puts first.
STEP = b'{"type": "step"'
#: Kinds of events that may be about an earlier step than the present one.
_OF_EARLIER_STEPS = ("checkpoint_saved", "exported", "cache_progress")


class EventLog:
    """The writer. `echo` is called with every event written, for projections in the same process; what `watch` finds in
    one, as (kind, message), is written after it as alerts. An index of the log is kept beside it."""

    def __init__(
        self,
        run_directory: Path,
        *,
        attempt: int,
        echo: Callable[[Event], None] | None = None,
        watch: Callable[[Event], list[tuple[str, str]]] = lambda event: [],
    ) -> None:
        self.attempt = attempt
        #: How far the attempt is. The end of a checkpoint or an export and the caching tell of an earlier step, and
        #: change it not.
        self.step = 0
        self._echo, self._watch = echo, watch
        self._writing = threading.Lock()  # the cache is made, and tells of it, while training goes on
        self._path = run_directory / NAME
        self._torn = _ends_torn(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._index = Writer(run_directory)

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        """Append one event. `fields` are all that `schema.FIELDS` lists for this kind, and those of `schema.OPTIONAL`
        that there are. Raises OSError."""
        required = fields.keys() - OPTIONAL.get(kind, {}).keys()
        assert required == FIELDS[kind].keys(), f"{kind} has {sorted(FIELDS[kind])}, not {sorted(fields)}"
        if kind not in _OF_EARLIER_STEPS:
            self.step = step
        event: Event = {"type": kind, "t": 0.0, "step": step, "attempt": self.attempt, **fields}
        if "metrics" in event:
            event["metrics"] = {name: as_logged(value) for name, value in event["metrics"].items()}
        assert well_formed(event), event
        with self._writing:
            event["t"] = round(time.time(), 3)  # inside the lock, so that times rise from line to line
            line = json.dumps(event, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n"
            self._index.add(event, self._append(line), line)
            if self._echo:
                self._echo(event)
            alerts = self._watch(event)
        for alert, message in alerts:
            self.write("alert", step=step, kind=alert, message=message)

    def close(self) -> None:
        """Close the log and its index."""
        self._index.close()
        os.close(self._fd)

    def _append(self, line: bytes) -> int:
        """Write a line, after one that was torn on a line of its own; the byte at which it begins.

        Raises OSError where the disk takes no more.
        """
        left = b"\n" + line if self._torn else line
        self._torn = True
        while left:  # a disk that is nearly full takes a part, and says why only when it is asked again
            written = os.write(self._fd, left)
            self._size += written
            left = left[written:]
        self._torn = False
        return self._size - len(line)


class SilentLog(EventLog):
    """The log of a process that is not the first of its run: nothing is written."""

    def __init__(self, *, attempt: int) -> None:
        self.attempt, self.step = attempt, 0

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        if kind not in _OF_EARLIER_STEPS:
            self.step = step

    def close(self) -> None: ...


class Tail:
    """Reads a log as it grows: `poll()` returns the events that have been completed since the last call."""

    def __init__(self, run_directory: Path, *, offset: int = 0) -> None:
        self._path = run_directory / NAME
        #: Bytes consumed; a later Tail that starts here continues without a gap.
        self.offset = offset
        #: Whether the last poll found another log there, which must be read from its beginning.
        self.replaced = False
        #: Which file the log was when it was last read.
        self._file: tuple[int, int] | None = None

    def poll(self, *, limit_bytes: int = 1 << 24) -> list[Event]:
        """New events, of about `limit_bytes` of whole lines; empty where there are none or no log yet."""
        while True:
            begin = self.offset
            events = [event for _, event in self.placed(limit_bytes=limit_bytes)]
            if events or self.offset == begin:  # lines that are no events are passed over
                return events

    def placed(self, *, limit_bytes: int) -> list[tuple[int, Event]]:
        """As `poll`, each event with the byte at which its line begins. No line begins beyond the limit."""
        try:
            # most looks find nothing new, and then open nothing
            if self._as_left(self._path.stat()):
                self.replaced = False
                return []
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                self.replaced = is_replaced(status, self._file, self.offset)
                self._file = file_of(status)
                file.seek(self.offset)
                chunk = file.read(limit_bytes)
                while chunk and b"\n" not in chunk and (more := file.read(limit_bytes)):
                    chunk += more
        except FileNotFoundError:
            return []
        begin, end = self.offset, chunk.rfind(b"\n") + 1
        self.offset += end
        return list(parse(chunk[:end], begin))

    def left(self) -> int:
        """Bytes of the log that have not been consumed."""
        return max(0, _size(self._path) - self.offset)

    def _as_left(self, status: os.stat_result) -> bool:
        return status.st_size == self.offset and self._file == file_of(status)


def file_of(status: os.stat_result) -> tuple[int, int]:
    """Which file it is, whatever its name."""
    return status.st_dev, status.st_ino


def is_replaced(status: os.stat_result, file: tuple[int, int] | None, offset: int) -> bool:
    """Whether another log stands where `offset` bytes of `file` were read, None where that has never been opened:
    one that is another file, or that has become shorter. Read it from the start."""
    return status.st_size < offset or file not in (None, file_of(status))


def read(run_directory: Path) -> list[Event]:
    """All events of a log, torn lines skipped; of what a resumed attempt did again, only the last telling is kept."""
    tail, events = Tail(run_directory), []
    while batch := tail.poll():
        events.extend(batch)
    return current_events(events)


def of_kinds(run_directory: Path, *kinds: str) -> Iterator[Event]:
    """All events of these kinds, of every attempt. Lines of other kinds, which may be millions, are not parsed."""
    marks = [f'"{kind}"'.encode() for kind in kinds]
    try:
        with (run_directory / NAME).open("rb") as file:
            for line in file:
                if any(mark in line for mark in marks):
                    yield from (event for _, event in parse(line) if event["type"] in kinds)
    except FileNotFoundError:
        return


def last_attempt(run_directory: Path) -> int:
    """Number of the attempt that wrote the newest event; 0 where there is none."""
    return max((event["attempt"] for event in _newest(run_directory)), default=0)


def last_step(run_directory: Path) -> int:
    """Return the last step that the newest attempt has reached; 0 without an event."""
    events = _newest(run_directory)
    return max((event["step"] for event in events if event["attempt"] == events[-1]["attempt"]), default=0)


def last_end(run_directory: Path) -> str | None:
    """How the newest attempt ended; None where it has not, or does not say so."""
    ends = [e for e in _newest(run_directory) if e["type"] in ("run_started", "run_finished")]
    return ends[-1].get("status") if ends else None


def _newest(run_directory: Path) -> list[Event]:
    """The last events, at least one where there is any."""
    size, back = _size(run_directory / NAME), 1 << 16
    while True:  # the last line alone may be longer than any number of bytes
        events = Tail(run_directory, offset=max(0, size - back)).poll(limit_bytes=back)
        if events or back >= size:
            return events
        back *= 8


def number(value: float | int | str) -> float:
    """A metric as it is read: the strings that stand for not finite numbers become those numbers."""
    return float(value)


def as_logged(value: float | int) -> float | int | str:
    """Return a metric as JSON can hold it: `number` makes a number of it again."""
    return value if math.isfinite(value) else str(value)


def parse(lines: bytes, begin: int = 0) -> Iterator[tuple[int, Event]]:
    """The events of whole lines, each with the byte at which its line begins where the first one does at `begin`."""
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


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False


_DECODER = json.JSONDecoder(parse_constant=_refuse)
