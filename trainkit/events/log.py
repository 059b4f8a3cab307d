"""Appending to `events.jsonl`; `tail.py` reads it.

A line is written by one unbuffered `write` on a file opened for appending, so it is there for every reader at once, and
survives the death of the process that wrote it. A line torn by a crash is closed by the next writer, and skipped by
readers.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainkit import files
from trainkit.events.held import HeldLines
from trainkit.events.index import Writer
from trainkit.events.mark import DECIDING, keep_mark
from trainkit.events.schema import FIELDS, OPTIONAL, Event, well_formed
from trainkit.events.tail import NAME, as_logged, file_of
from trainkit.redaction import redact

#: Seconds before each further try to write what the disk has refused at the end of an attempt.
RETRY_AFTER = (1.0, 3.0, 10.0)
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
                keep_mark(self._path.parent, self._size, self._checksum, step=step, attempt=self.attempt)
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


def _without_secrets(text: str, kind: str) -> str:
    """Return the JSON of an event without secrets; a model may write a program, in which keys have values."""
    if kind == "step" and "://" not in text:  # numbers, of every step
        return text
    return redact(text, keys=kind != "sampled")


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False
