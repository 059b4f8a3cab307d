"""Copy a run's log to a tracker, until its trainer has ended, or its metrics to a table."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.attempts import MESSAGES, CurrentEvents, process_alive, resumed_step
from trainkit.events.reducer import record
from trainkit.events.schema import FOREIGN, Event
from trainkit.events.series import Series
from trainkit.events.tail import Tail
from trainkit.printer import quote
from trainkit.recipe.sections.outputs import Track
from trainkit.rundir.directory import read_sweep
from trainkit.track.projections import (
    ABOUT,
    Name,
    Projection,
    TrackerProgress,
    known_progress,
    read_progress,
    write_progress,
)

#: Kinds of events that a tracker keeps whatever later attempts do again: commands are messages to it.
STAYS = MESSAGES | {"control"}
#: Seconds between two looks at the log.
INTERVAL = 1.0
#: Bytes of the log that are read at once.
_AT_ONCE = 1 << 18
#: Seconds to wait for a sidecar of an earlier attempt that is about to end.
PATIENCE = 30.0


def follow(run_directory: Path, name: Name, spec: Track) -> TrackerProgress:
    """Copy a run's events until its newest attempt has ended, or its trainer has died and the whole log is copied.

    Continues the tracker's run of an earlier sidecar. Returns how far the log has been copied.

    Raises:
        TrainkitError: the tracker cannot be written, or the log has events that cannot be copied (the others are).
    """
    try:
        with _only_one(run_directory, name):
            while not _copy_events(run_directory, name, spec):
                pass
    except OSError as error:
        raise TrainkitError(
            f"{ABOUT[name].title} cannot be brought up to date: {error}",
            where=str(run_directory),
            hint=f"fix that; trainkit track {quote(run_directory)} then continues where this stopped",
            exit_code=FAILED,
        ) from error
    progress = read_progress(run_directory, name)
    assert progress is not None
    return progress


def _copy_events(run_directory: Path, name: Name, spec: Track) -> bool:
    """Return whether the copy is complete; False if it must start again from the beginning."""
    projection = _open(run_directory, name, spec)
    copy = _Copy(run_directory, name, projection)
    try:
        projection.set_recipe(_recipe(run_directory))
        if sweep := read_sweep(run_directory):
            projection.set_sweep(sweep)
        done = copy.to_the_end()
    finally:
        projection.close()
    if done and copy.problems:
        raise TrainkitError(
            f"{len(copy.problems)} of the events cannot be copied; the first: {copy.problems[0]}",
            where=str(run_directory),
            hint=f"the others are copied; the log has them all: trainkit watch {quote(run_directory)}",
            exit_code=FAILED,
        )
    return done


def _open(run_directory: Path, name: Name, spec: Track) -> Projection:
    if name == "tensorboard":  # writes its files again from the beginning of the log
        from trainkit.track.tensorboard import TensorBoard

        return TensorBoard(run_directory)
    known = known_progress(run_directory, name, Path(spec.repository))
    match name:
        case "aim":
            from trainkit.track.aim_run import AimRun

            return AimRun.open(run_directory, spec, known)
        case "wandb":
            from trainkit.track.wandb import WandBRun

            return WandBRun(run_directory, spec, known)


class _Copy:
    """One pass over the log."""

    def __init__(self, run_directory: Path, name: Name, projection: Projection) -> None:
        self._run, self._name, self._projection = run_directory, name, projection
        self._progress = projection.progress
        write_progress(run_directory, name, self._progress)
        self.problems: list[str] = []

    def to_the_end(self) -> bool:
        offset = self._progress.offset
        tail, current = Tail(self._run, offset=offset), events_to_copy(self._run, offset)
        while True:
            # asked before reading, so that everything a trainer wrote before it died is read
            over = self._is_over()
            events = tail.poll(limit_bytes=_AT_ONCE)
            for event in events:
                try:
                    if current.keeps(event) and not self._take(event):
                        return False
                except FOREIGN as error:
                    self.problems.append(f"{type(error).__name__}: {error}, in an event of step {event['step']!r}")
            if events:
                self._progress.offset = tail.offset
                write_progress(self._run, self._name, self._progress)
            elif over:
                return True
            # not as often as a fast trainer logs: each note of the progress is flushed to the disk
            if tail.bytes_left() < _AT_ONCE and not self._is_over():
                time.sleep(INTERVAL)

    def _take(self, event: Event) -> bool:
        progress = self._progress
        if event["type"] not in STAYS:  # otherwise there would always be something to delete
            progress.last_step = max(progress.last_step, event["step"])
        if event["type"] == "run_started":
            resumed = resumed_step(event)
            if resumed < progress.last_step:
                if not self._projection.forget_beyond(resumed):
                    return False
                progress.last_step = resumed
            progress.attempt = event["attempt"]
            progress.pid, progress.process_started = event["pid"], event["process_started"]
            progress.finished = False
        if event["type"] == "run_finished" and event["attempt"] == progress.attempt:
            progress.finished = True
        self._projection.write(event)
        return True

    def _is_over(self) -> bool:
        """Return whether nothing more will come: the attempt has ended, its trainer is dead, or there is none."""
        now = self._progress
        return now.finished or now.pid is None or not process_alive(now.pid, now.process_started)


def events_to_copy(run_directory: Path, offset: int = 0) -> CurrentEvents:
    """Return what decides which events of a log are to be copied, asked in order from byte `offset` on."""
    return CurrentEvents(_events(run_directory, offset), always=STAYS)


def _events(run_directory: Path, offset: int) -> Iterator[Event]:
    tail = Tail(run_directory, offset=offset)
    while events := tail.poll():
        yield from events


def _recipe(run_directory: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((run_directory / "recipe.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


@contextmanager
def _only_one(run_directory: Path, name: Name) -> Iterator[None]:
    """Hold the lock of the run's sidecar: two would write everything twice. It ends with the process."""
    with (run_directory / f"{name}.lock").open("w") as file:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrainkitError(
                        f"another process is copying this run into {ABOUT[name].title}",
                        where=str(run_directory),
                        hint="wait until it ends, or stop it",
                        exit_code=FAILED,
                    ) from None
                time.sleep(0.2)
        yield


def write_table(run_directory: Path, path: Path) -> int:
    """Write the metrics of a run to `path`, `.csv` or `.parquet`, and return the number of rows.

    A row is a step, a column a metric. The table has every step, however long the run, but not the steps that a later
    attempt did again.

    Raises:
        TrainkitError: the suffix is another, or the file cannot be written.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise TrainkitError(
            f"a table is a .csv or a .parquet file, found '{path.suffix}'",
            where=str(path),
            hint="end the name with .csv or .parquet",
        )
    columns = _columns(_metrics(run_directory))
    try:
        if path.suffix == ".csv":
            _write_csv(columns, path)
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.table(columns), path)
    except OSError as error:
        raise TrainkitError(
            f"the table cannot be written: {error.strerror or error}",
            where=str(path),
            hint="name a file in an existing directory in which you may write",
        ) from error
    return len(columns["step"])


def _metrics(run_directory: Path) -> dict[str, Series]:
    series: dict[str, Series] = {}
    tail, current = Tail(run_directory), events_to_copy(run_directory)
    while events := tail.poll():
        for event in events:
            if current.keeps(event) and event["type"] in ("step", "evaluated"):
                with contextlib.suppress(*FOREIGN):
                    record(series, event, limit=None)
    return series


def _columns(metrics: Mapping[str, Series]) -> dict[str, list[float | int | None]]:
    """Return the column `step` and one for each metric; None where a step has no value of a metric."""
    steps = sorted(set().union(*(series.steps for series in metrics.values())))
    columns: dict[str, list[float | int | None]] = {"step": [int(step) for step in steps]}
    for name, series in sorted(metrics.items()):
        values = dict(zip(series.steps, series.values, strict=True))
        columns[name] = [values.get(step) for step in steps]
    return columns


def _write_csv(columns: Mapping[str, list[float | int | None]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
