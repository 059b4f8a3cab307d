"""`events.index`: summaries of long stretches of a log, so that a log of gigabytes is shown without being parsed.

The writer of the log appends a record for every `STRETCH` step events, once their lines are written. Lines between two
records are read as lines: the first `FINE` steps, the beginning of each attempt, and what the last record does not
cover, after a crash too. So a log without an index, or with a part of one, only opens more slowly.

A record is a magic number that tells the byte order, the length and the CRC-32 of what follows, the length of a head in
JSON, the head, and the arrays of `Series`, metric by metric. A stretch holds step events of one attempt whose steps
grow, and events of other kinds between them, which are kept as the places of their lines.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trainkit.events.schema import FOREIGN, Event
from trainkit.events.series import Series
from trainkit.events.view import Pace

NAME, LOG = "events.index", "events.jsonl"
#: Step events in a stretch, the step of the first stretch, and the most steps in a bucket.
STRETCH, FINE, COARSEST = 4096, 4096, 256
#: The finest buckets hold `FINE` / 512 steps, and twice as many wherever a run has become twice as long.
BUCKETS = 512
#: Bytes of a stretch's first and last lines that identify it: they contain the time of day and the last values.
KNOWN_BY = 48

_MAGIC = b"tix<" if sys.byteorder == "little" else b"tix>"
_RECORD, _HEAD = struct.Struct("<4sII"), struct.Struct("<I")


def stride(step: int) -> int:
    """Return the steps per bucket of a stretch that begins at `step`."""
    return min(COARSEST, 1 << max(1, step // BUCKETS).bit_length() - 1)


@dataclass(kw_only=True)
class Stretch:
    """The summary of a part of the log.

    Attributes:
        begin, end: its bytes of the log, whole lines.
        last: its last step; every earlier one is smaller.
        stride: step events in a bucket.
        blocks: for each `stride` step events, the last step and the byte at which the line of the next one begins.
        kept: (begin, length) of each line that is no step, of the step just before it, and of the last step.
        pace, timed: `Pace.seconds` and `Pace.last` at its end.
        series: every metric of the step events.
        lines: the lines of `kept`, from the log.
    """

    begin: int
    end: int
    last: int
    stride: int
    blocks: list[tuple[int, int]]
    kept: list[tuple[int, int]]
    pace: list[float]
    timed: tuple[int, float] | None
    series: dict[str, Series]
    lines: bytes = b""


def stretches(run_directory: Path) -> Iterator[Stretch]:
    """Yield the stretches of a run's index in order: the complete records that still agree with the log."""
    try:
        index, log = (run_directory / NAME).open("rb"), (run_directory / LOG).open("rb")
    except OSError:
        return
    with index, log:
        end = 0
        for record in _records(index):
            try:
                stretch = _stretch_in(record, log, end)
            except (struct.error, *FOREIGN):  # a whole record that no trainer wrote
                return
            if stretch is not None:
                end = stretch.end
                yield stretch


def _stretch_in(record: bytes, log: BinaryIO, end: int) -> Stretch | None:
    """Return the stretch of a record; None if it begins before `end` or does not agree with the log."""
    head = json.loads(record[_HEAD.size :][: _HEAD.unpack_from(record)[0]])
    if head["begin"] < end or _digest(log, head["begin"], head["end"]) != head.pop("digest"):
        return None
    stretch = _stretch(head, memoryview(record)[_HEAD.size + _HEAD.unpack_from(record)[0] :])
    stretch.lines = b"".join(_part(log, *place) for place in stretch.kept)
    return stretch


def _records(index: BinaryIO) -> Iterator[bytes]:
    """Yield the complete records up to the first damaged one, after which the beginning of the next is unknown."""
    while len(header := index.read(_RECORD.size)) == _RECORD.size:
        magic, length, crc = _RECORD.unpack(header)
        if magic != _MAGIC or len(record := index.read(length)) < length or zlib.crc32(record) != crc:
            return
        yield record


def _stretch(head: dict[str, Any], arrays: memoryview) -> Stretch:
    series, at = {}, 0
    for name, buckets in head.pop("metrics").items():
        series[name] = Series(stride=head["stride"], limit=None)
        for part in Series.FIELDS:
            getattr(series[name], part).frombytes(arrays[at : (at := at + 8 * buckets)])
    timed = head.pop("timed")
    return Stretch(series=series, timed=timed and tuple(timed), **head)


def _part(file: BinaryIO, begin: int, length: int) -> bytes:
    file.seek(begin)
    return file.read(max(0, length))


def _digest(log: BinaryIO, begin: int, end: int) -> int | None:
    """Return the hash that identifies this part of the log; None if the log does not have it."""
    first, last = _part(log, begin, KNOWN_BY), _part(log, end - KNOWN_BY, KNOWN_BY)
    return zlib.crc32(first + last) if len(last) == KNOWN_BY else None


@dataclass(kw_only=True)
class _Open:
    """A stretch that is being written. `block` holds the step events that are in no bucket yet."""

    begin: int
    stride: int
    first: bytes
    steps: int = 0
    last: int = -1
    blocks: list[tuple[int, int]] = field(default_factory=list)
    kept: list[tuple[int, int]] = field(default_factory=list)
    block: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def pack(self, end: int) -> None:
        """Make buckets of the step events since the last ones."""
        for name in dict.fromkeys(name for _, metrics in self.block for name in metrics):
            points = [(step, metrics[name]) for step, metrics in self.block if name in metrics]
            if name not in self.series:
                self.series[name] = Series(stride=self.stride, limit=None)
            self.series[name].pack([step for step, _ in points], [float(value) for _, value in points])
        self.blocks.append((self.last, end))
        self.block = []


class Writer:
    """Writes the index of one attempt while events are appended to the log.

    An index is optional: if it cannot be written, or a stretch cannot hold the events, the attempt does without it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / NAME
        self._fd: int | None = None
        self._open: _Open | None = None
        self._line = (0, 0)
        self._told = b""
        self._stepped = self._given_up = False
        self._pace = Pace()

    def add(self, event: Event, begin: int, line: bytes) -> None:
        """Take the event whose `line` was just written at byte `begin` of the log."""
        if self._given_up:
            return
        if event["type"] == "run_started":
            self._write()
            self._pace = Pace()
        step = event["step"] if event["type"] == "step" else None
        if step is not None and self._open is None and step >= FINE:
            self._open = _Open(begin=begin, stride=stride(step), first=line[:KNOWN_BY])
        if self._open is not None:
            self._take(self._open, event, step, begin, line)
        self._pace.add(event)
        if self._open is not None and self._open.steps >= STRETCH:
            self._write()

    def close(self) -> None:
        """Write a record of what the last one does not cover."""
        self._write()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._given_up = True

    def _take(self, to: _Open, event: Event, step: int | None, begin: int, line: bytes) -> None:
        metrics = event.get("metrics", {})
        if step is None:
            to.kept += [self._line, (begin, len(line))] if self._stepped else [(begin, len(line))]
            to.others.update(metrics)
        elif step <= to.last:
            self._give_up()
            return
        else:
            to.block.append((step, metrics))
            to.last, to.steps = step, to.steps + 1
        self._stepped, self._line, self._told = step is not None, (begin, len(line)), line
        if len(to.block) == to.stride:
            to.pack(begin + len(line))

    def _write(self) -> None:
        to, self._open = self._open, None
        if to is None or self._given_up:
            return
        end = sum(self._line)
        to.pack(end)
        if not to.others.isdisjoint(to.series):
            self._give_up()  # a bucket cannot tell which of two events had a metric last
            return
        kept = [*to.kept, self._line] if self._stepped else to.kept
        stretch = Stretch(
            begin=to.begin,
            end=end,
            last=to.last,
            stride=to.stride,
            blocks=to.blocks,
            kept=kept,
            pace=list(self._pace.seconds),
            timed=self._pace.last,
            series=to.series,
        )
        try:
            self._append(_record(stretch, zlib.crc32(to.first + self._told[-KNOWN_BY:])))
        except OSError:
            self._give_up()

    def _append(self, record: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            with open(self._fd, "rb", closefd=False) as index:
                whole = sum(_RECORD.size + len(one) for one in _records(index))
            os.truncate(self._fd, whole)  # a record torn by a crash would hide the records after it
        while record:
            record = record[os.write(self._fd, record) :]

    def _give_up(self) -> None:
        self._given_up, self._open = True, None


def _record(stretch: Stretch, digest: int) -> bytes:
    fields = {name: value for name, value in vars(stretch).items() if name not in ("series", "lines")}
    metrics = {name: len(series) for name, series in stretch.series.items()}
    head = json.dumps({**fields, "digest": digest, "metrics": metrics}).encode()
    arrays = (getattr(series, part) for series in stretch.series.values() for part in Series.FIELDS)
    body = b"".join((_HEAD.pack(len(head)), head, *arrays))
    return _RECORD.pack(_MAGIC, len(body), zlib.crc32(body)) + body
