"""Decoded batches, read by `trainkit inspect` in a process of its own, so that the viewer needs no numpy for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trainkit.text import neutralise, one_line

#: Rows of a batch that are read, batches that are kept, and lines of an error that are shown.
ROWS, MOST_BATCHES, ERROR_LINES = 8, 64, 12


class ShownSpan(NamedTuple):
    """Tokens `first` … `end - 1` of the document at `where`; `runs` are (text, whether it is learned). All inert."""

    where: str
    first: int
    end: int
    runs: tuple[tuple[str, bool], ...]


class DisplayedRow(NamedTuple):
    """A row of a batch as the page of data shows it."""

    row: int
    source: str
    example: int
    label: str | None
    pieces: tuple[ShownSpan, ...]


class Batch(NamedTuple):
    """The first rows of a batch, or (inert) why they could not be read."""

    rows: tuple[DisplayedRow, ...] = ()
    error: str = ""


class BatchReader:
    """Reads batches of a run by step, one at a time, in a thread that then calls `done`; keeps the last ones."""

    def __init__(self, run_directory: Path, done: Callable[[], object]) -> None:
        self._run, self._done = run_directory, done
        self._kept: dict[int, Batch] = {}
        self._lock = threading.Lock()
        self._reading: int | None = None
        self._child: subprocess.Popen[str] | None = None
        self._age, self._closed = 0, False

    def get(self, step: int) -> Batch | None:
        """Return the batch of a step, or None and start reading it, unless another is being read."""
        with self._lock:
            if step in self._kept:
                return self._kept[step]
            if self._reading is None and not self._closed:
                self._reading = step
                threading.Thread(target=self._read, args=(step, self._age), name="read batch", daemon=True).start()
            return None

    def newest_before(self, step: int) -> tuple[int, Batch] | None:
        """Return the last batch in memory before `step`, with its step."""
        with self._lock:
            kept = [other for other in self._kept if other < step]
            return (max(kept), self._kept[max(kept)]) if kept else None

    def retry(self, step: int) -> None:
        """Read the batch of a step again if reading it failed."""
        with self._lock:
            if step in self._kept and self._kept[step].error:
                del self._kept[step]

    def forget(self) -> None:
        """Forget all batches, including the one that is being read."""
        with self._lock:
            self._kept.clear()
            self._age += 1

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()

    def _read(self, step: int, age: int) -> None:
        batch = self._inspect(step)
        with self._lock:
            self._reading = self._child = None
            if self._closed:
                return
            if age == self._age:
                while len(self._kept) >= MOST_BATCHES:
                    del self._kept[next(iter(self._kept))]
                self._kept[step] = batch
        self._done()

    def _inspect(self, step: int) -> Batch:
        options = ["--step", str(step), "--rows", str(ROWS), "--json"]
        command = [sys.executable, "-m", "trainkit", "inspect", str(self._run), *options]
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONIOENCODING": "utf-8:replace"}
        with self._lock:
            if self._closed:
                return Batch()
            try:
                self._child = child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment,
                    encoding="utf-8", errors="replace",
                )  # fmt: skip
            except OSError as error:
                return Batch(error=neutralise(f"{error}"))
        output, problem = child.communicate()
        if child.returncode:
            lines = neutralise(problem.strip()).split("\n")[-ERROR_LINES:]
            return Batch(
                error="\n".join(lines) if problem.strip() else f"trainkit inspect ended with {child.returncode}"
            )
        try:  # split at line feeds alone: texts may contain other line ends
            rows = tuple(_row(json.loads(line)) for line in output.split("\n") if line)
        except ValueError as error:
            return Batch(error=neutralise(f"trainkit inspect printed no JSON: {error}"))
        return Batch(rows) if rows else Batch(error="trainkit inspect printed no row")


def _row(fields: dict[str, Any]) -> DisplayedRow:
    pieces = tuple(
        ShownSpan(
            _line(f"{piece['part']}: " * bool(piece["part"]) + piece["where"]), piece["first"], piece["end"],
            tuple((neutralise(text), learned) for text, learned in piece["runs"]),
        )
        for piece in fields["pieces"]
    )  # fmt: skip
    label = None if fields["label"] is None else _line(str(fields["label"]))
    return DisplayedRow(fields["row"], _line(fields["source"]), fields["example"], label, pieces)


def _line(name: str) -> str:
    return one_line(name)
