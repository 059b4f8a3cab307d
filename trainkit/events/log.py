"""Appending to and tailing `events.jsonl`.

A line is written by one unbuffered `write` on a file opened for appending, so it is there for every reader at once, and
survives the death of the process that wrote it. A line torn by a crash is closed by the next writer, and skipped by
readers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainkit import files
from trainkit.events.attempts import CurrentEvents, current_events
from trainkit.events.held import HeldLines
from trainkit.events.index import Writer
from trainkit.events.schema import FIELDS, OPTIONAL, Event, well_formed
from trainkit.redaction import redact

NAME = "events.jsonl"
#: Beside a log that was made small: which log that is, and up to which attempt its checkpoints know another one.
COMPACTED = "compacted.json"
#: The beginning of the lines of step events, and of no others: `EventLog.write` puts this field first.
STEP = b'{"type": "step"'
#: No line of a trainer is as long; readers skip a longer one in parts, so that it takes no more memory than this.
LONGEST_LINE = 1 << 24
#: Seconds before each further try to write what the disk has refused at the end of an attempt.
RETRY_AFTER = (1.0, 3.0, 10.0)
#: Beside the log: its checksum up to the newest event by which a later attempt decides what it does.
MARK = "events.mark"
#: Kinds of these events: commands that it repeats, evaluations of which it knows the best, steps that it leaves out.
DECIDING = ("control", "evaluated", "rolled_back", "run_finished")
#: Kinds of events that may be about a step before the present one.
_OF_EARLIER_STEPS = ("checkpoint_saved", "exported", "cache_progress")


class EventLog:
    """Appends events to a run's log, and keeps the log's index.

    `echo` is called with every event written, for projections in the same process. The alerts that `watch` returns for
    an event, as (kind, message), are written after it. Once a step is in the log, lines that the disk refuses are kept
    and written later: an alert says so, and no checkpoint is saved meanwhile.
    """

    def __init__(
        self,
        run_directory: Path,
        *,
        attempt: int,
        echo: Callable[[Event], None] | None = None,
        watch: Callable[[Event], list[tuple[str, str]]] = lambda event: [],
    ) -> None:
        self.attempt = attempt
        #: The attempt's present step. Events about earlier steps, such as the end of a checkpoint or an export, do not
        #: change it.
        self.step = 0
        #: The newest step event's step and metrics.
        self.newest: tuple[int, dict[str, Any]] = (0, {})
        self._echo, self._watch, self._held = echo, watch, HeldLines()
        self._writing = threading.Lock()  # caching reports its progress while training continues
        self._path = run_directory / NAME
        self._torn = _ends_torn(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._checksum = int(files.checksum_of(self._path, self._size), 16)
        self._index = Writer(run_directory)

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        """Append one event. Raises OSError.

        Args:
            fields: all that `schema.FIELDS` lists for this kind, and any of `schema.OPTIONAL`.
        """
        required = fields.keys() - OPTIONAL.get(kind, {}).keys()
        assert required == FIELDS[kind].keys(), f"{kind} has {sorted(FIELDS[kind])}, not {sorted(fields)}"
        if kind not in _OF_EARLIER_STEPS:
            self.step = step
        event: Event = {"type": kind, "t": 0.0, "step": step, "attempt": self.attempt, **fields}
        if "metrics" in event:
            event["metrics"] = {name: as_logged(value) for name, value in event["metrics"].items()}
        assert well_formed(event), event
        with self._writing:
            event["t"] = round(time.time(), 3)  # within the lock, so that times never decrease from line to line
            text = json.dumps(event, ensure_ascii=False, allow_nan=False)
            shared = _without_secrets(text, kind)
            event = event if shared == text else json.loads(shared)
            line = shared.encode(errors="replace") + b"\n"
            self._held.keeps |= kind == "step"
            self._held.add(event, line)
            message = self._held.write(self._append_event)
            if kind == "step":
                self.newest = step, event["metrics"]
            if kind in DECIDING and self._held.problem is None:
                self._keep_mark(step)
            if self._echo:
                self._echo(event)
            alerts = ([("log", message)] if message else []) + self._watch(event)
        for alert, message in alerts:
            self.write("alert", step=step, kind=alert, message=message)

    def mark(self) -> tuple[int, str] | None:
        """Return the bytes of the log so far and their checksum, by which `damage` finds what has changed in them."""
        with self._writing:
            return self._size, files.as_digits(self._checksum)

    def is_in_place(self) -> bool:
        """Return whether the run's directory still has this log: False if it was deleted, moved or replaced."""
        try:
            return file_of(self._path.stat()) == file_of(os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the disk does not answer
            return True

    def why_incomplete(self) -> str | None:
        """Try to write the lines that the disk refused; return why it refuses them, or None if all are written."""
        with self._writing:
            message = self._held.write(self._append_event)
        if message:
            self.write("alert", step=self.step, kind="log", message=message)
        return None if self._held.problem is None else os.strerror(self._held.problem.errno or 0)

    def complete(self) -> None:
        """Return once every line is written. Raises OSError if the disk refuses for as long as `RETRY_AFTER` says."""
        for seconds in RETRY_AFTER:
            if self.why_incomplete() is None:
                return
            time.sleep(seconds)
        if self.why_incomplete() is not None:
            assert self._held.problem is not None
            raise self._held.problem

    def close(self) -> None:
        """Close the log and its index."""
        self._index.close()
        os.close(self._fd)

    def _keep_mark(self, step: int) -> None:
        """Record the checksum of the log so far beside it. It is not flushed: without it, less is compared."""
        path, draft = self._path.with_name(MARK), self._path.with_name(f".{MARK}")
        mark = {"bytes": self._size, "crc32": files.as_digits(self._checksum), "step": step, "attempt": self.attempt}
        with contextlib.suppress(OSError):
            draft.write_text(files.seal(json.dumps(mark)))
            draft.replace(path)

    def _append_event(self, event: Event, line: bytes) -> None:
        self._index.add(event, self._append(line), line)

    def _append(self, line: bytes) -> int:
        """Write a line, and end a torn line before it; return the byte at which the line begins.

        Raises OSError if the disk refuses.
        """
        left = b"\n" + line if self._torn else line
        self._torn = True
        while left:  # a nearly full disk takes a part of the line, and reports the reason only at the next write
            written = os.write(self._fd, left)
            self._size += written
            self._checksum = files.checksum(left[:written], self._checksum)
            left = left[written:]
        self._torn = False
        return self._size - len(line)


class SilentLog(EventLog):
    """The log of a process other than the first of its run: it writes nothing."""

    def __init__(self, *, attempt: int) -> None:
        self.attempt, self.step, self.newest = attempt, 0, (0, {})

    def write(self, kind: str, /, *, step: int, **fields: Any) -> None:
        if kind not in _OF_EARLIER_STEPS:
            self.step = step

    def mark(self) -> None:
        return None

    def is_in_place(self) -> bool:
        return True

    def complete(self) -> None: ...

    def close(self) -> None: ...


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


def damage(run_directory: Path, mark: tuple[int, str], *, step: int, attempt: int) -> str | None:
    """Return how the log differs from the `mark` that an attempt made of it at `step`; None if it does not, or differs
    only because it was made small since then."""
    path, (size, expected) = run_directory / NAME, mark
    if path.exists() and files.checksum_of(path, size) == expected:
        return None
    if _is_small_log_of(run_directory, attempt):
        return None
    # twice through the log, which may be larger than the memory
    current, seen = CurrentEvents(of_kinds(run_directory, "run_started")), bytearray(step + 1)
    for event in filter(current.keeps, of_kinds(run_directory, "run_started", "step")):
        if event["type"] == "step" and 0 <= event["step"] <= step:
            seen[event["step"]] = 1
    missing = seen.count(0, 1)
    lost = f"{missing} of the steps up to {step} are missing, the first is {seen.find(0, 1)}" if missing else ""
    lost = lost or "no step is missing, but other events are or values differ"
    return f"{NAME} is not as it was at step {step}: {lost}; training itself needs none of them"


class LogMark(NamedTuple):
    """The bytes of a log and their checksum, made by an attempt after a step."""

    log: tuple[int, str]
    step: int
    attempt: int


def newest_mark(run_directory: Path) -> LogMark | None:
    """Return the mark that was made with the newest event of `DECIDING`; None if there is none, or it is damaged."""
    try:
        mark = files.read_json(run_directory / MARK)
        return LogMark((int(mark["bytes"]), str(mark["crc32"])), int(mark["step"]), int(mark["attempt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_small_log_of(run_directory: Path, attempt: int) -> bool:
    """Return whether the log begins with the undamaged small log of a run up to this attempt or a later one."""
    try:
        record = files.read_json(run_directory / COMPACTED)
        expected = str(record["crc32"])
        is_later = int(record["attempt"]) >= attempt
        return is_later and files.checksum_of(run_directory / NAME, int(record["bytes"])) == expected
    except (OSError, ValueError, KeyError, TypeError):
        return False


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


def _without_secrets(text: str, kind: str) -> str:
    """Return the JSON of an event without secrets; a model may write a program, in which keys have values."""
    if kind == "step" and "://" not in text:  # numbers, of every step
        return text
    return redact(text, keys=kind != "sampled")


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
