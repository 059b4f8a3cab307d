"""The sidecar's work: follow the log, write to Aim, and close and index the run when its trainer is gone."""

from __future__ import annotations

import fcntl
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import Tail
from trainkit.events.process import process_alive
from trainkit.events.schema import Event
from trainkit.track import progress as progress_file
from trainkit.track.aim_run import AimRun
from trainkit.track.progress import Progress

#: Seconds between two looks at the log.
INTERVAL = 1.0
#: Seconds to wait for a sidecar of an earlier attempt that is about to end.
PATIENCE = 30.0


def follow(run_directory: Path, *, repository: Path, experiment: str) -> None:
    """Copy a run's events into Aim until its newest attempt has ended, or its trainer is dead and the log read out.

    Goes on where the sidecar before it was, with the same Aim run. Raises TrainkitError where Aim cannot be written.
    """
    with _only_one(run_directory):
        progress = progress_file.read(run_directory)
        known = progress.run if progress and progress.repository == str(repository) else None
        run = AimRun.open(repository, run_hash=known, experiment=experiment)
        if progress is None or run.hash != progress.run:
            progress = Progress(run=run.hash, repository=str(repository))
            progress_file.write(run_directory, progress)
        try:
            run.set_parameters(_recipe(run_directory))
            _copy(run_directory, run, progress)
        finally:
            run.close()
        run.index()


def _copy(run_directory: Path, run: AimRun, progress: Progress) -> None:
    tail = Tail(run_directory, offset=progress.offset)
    while True:
        # asked before reading: what a trainer wrote before it died is then read for certain
        over = _is_over(progress)
        events = tail.poll(limit_bytes=1 << 18)
        for event in events:
            _observe(progress, event, run)
            run.write(event, progress)
        if events:
            progress.offset = tail.offset
            progress_file.write(run_directory, progress)
        elif over:
            return
        else:
            time.sleep(INTERVAL)


def _observe(progress: Progress, event: Event, run: AimRun) -> None:
    progress.last_step = max(progress.last_step, event["step"])
    if event["type"] == "run_started":
        resumed_from = event["resumed_from"] or 0
        if resumed_from < progress.last_step:
            run.forget_beyond(resumed_from)
            progress.last_step = resumed_from
        progress.attempt = event["attempt"]
        progress.pid, progress.process_started = event["pid"], event["process_started"]
        progress.finished = False
    if event["type"] == "run_finished" and event["attempt"] == progress.attempt:
        progress.finished = True


def _is_over(progress: Progress) -> bool:
    """Of a log in which no attempt has begun there is nothing to wait for."""
    return progress.finished or progress.pid is None or not process_alive(progress.pid, progress.process_started)


def _recipe(run_directory: Path) -> dict[str, object]:
    try:
        return {"recipe": tomllib.loads((run_directory / "recipe.toml").read_text(encoding="utf-8"))}
    except FileNotFoundError:
        return {}


@contextmanager
def _only_one(run_directory: Path) -> Iterator[None]:
    """Two sidecars of one run would write everything twice. The lock goes with the process."""
    with (run_directory / "aim.lock").open("w") as file:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrainkitError(
                        "another process is copying this run into Aim",
                        where=str(run_directory),
                        hint="wait until it ends, or end it",
                        exit_code=FAILED,
                    ) from None
                time.sleep(0.2)
        yield
