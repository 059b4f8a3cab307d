"""Running the trials of a sweep: so many processes at a time, each an ordinary run that can be resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from trainkit.errors import DONE, FAILED, STOPPED_EARLY, TrainkitError
from trainkit.events import commands
from trainkit.events.log import last_end
from trainkit.parallel import hosts
from trainkit.run.attempt import spawn
from trainkit.run.start import Start
from trainkit.rundir.directory import create, hold_lock, is_training
from trainkit.search.trials import Study, Trial
from trainkit.text import format_quantity

#: The ends of a run after which it is not continued.
ENDED = ("finished", "failed")
#: Seconds between two looks at the trials that run.
PAUSE = 0.2


class Process(Protocol):
    """What a sweep asks of the process of a trial."""

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""

    def terminate(self) -> None:
        """Ask it to save a checkpoint and end."""


#: Starts or resumes the run in a directory, with additions to the environment.
Starter = Callable[[Path, Mapping[str, str]], Process]


def spawn_trial(directory: Path, environment: Mapping[str, str]) -> Process:
    """Start or resume a trial in a process of its own, which survives that of the sweep."""
    return spawn(directory, Start(), environment=environment)


def run(study: Study, report: Callable[[str], None], *, start: Starter = spawn_trial, pause: float = PAUSE) -> int:
    """Run the trials that have not ended, and return the exit code.

    A trial that was cut off continues from its newest checkpoint; one that still runs, because only the sweep was
    killed, is waited for. Ctrl-C stops the trials with a checkpoint.

    Args:
        report: called with a line for people at the start and the end of each trial.

    Raises:
        TrainkitError: another process runs the sweep, it was begun with another recipe, there are too few GPUs, this
            is one of several machines, or a trial cannot be created; those that run are stopped with a checkpoint.
    """
    if os.environ.get(hosts.ADDRESS):
        raise TrainkitError("a sweep works on one machine only", where=hosts.ADDRESS, hint=f"unset {hosts.ADDRESS}")
    slots = divide_devices(study.spec.at_once, study.platform)
    study.begin()
    with _hold_lock(study.directory):
        study.read()
        waiting = [trial for trial in study.trials if trial.number not in study.ends]
        running: dict[int, tuple[Trial, Process | None]] = {}
        unfinished = 0
        try:
            while waiting or running:
                for slot in range(len(slots)):
                    if waiting and slot not in running:
                        trial = waiting.pop(0)
                        running[slot] = trial, _begin(study, trial, slots[slot], report, start)
                for slot, (trial, process) in list(running.items()):
                    if (process is None or process.poll() is not None) and not is_training(trial.directory):
                        del running[slot]
                        unfinished += not _end(study, trial, report)
                if running:
                    time.sleep(pause)
        except (KeyboardInterrupt, TrainkitError, OSError):  # a trial may not even be created, as on a full disk
            if running:
                report("stopping the trials, each with a checkpoint; the same command continues the sweep")
            _stop(list(running.values()), pause)
            raise
    if unfinished:
        return STOPPED_EARLY
    return DONE if any(end.status == "finished" for end in study.ends.values()) else FAILED


@contextmanager
def _hold_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a sweep within the block. Raises TrainkitError if another process holds it."""
    if is_training(directory):
        raise TrainkitError(
            "another process runs this sweep", where=str(directory), hint="--leaderboard prints its trials"
        )
    with hold_lock(directory):
        yield


def _begin(
    study: Study, trial: Trial, environment: Mapping[str, str], report: Callable[[str], None], start: Starter
) -> Process | None:
    """Create the run of a trial, or continue it, and return its process; None where it is another one's child, or
    where its run has ended already."""
    name = f"trial {trial.number} of {len(study.trials)}: {trial.in_words}"
    if not trial.directory.exists():
        create(trial.loaded)
        study.record_start(trial)
    elif is_training(trial.directory) or last_end(trial.directory) in ENDED:
        report(f"{name}; it is running already" if is_training(trial.directory) else name)
        return None
    else:
        name += "; continued"
    report(name)
    return start(trial.directory, environment)


def _end(study: Study, trial: Trial, report: Callable[[str], None]) -> bool:
    """Record how a trial ended; return whether it has ended and need not be continued."""
    end = study.record_end(trial)
    if end is None:
        report(f"trial {trial.number} was cut off; the same command continues it")
    elif end.status == "failed":
        report(f"trial {trial.number} failed: {end.message.splitlines()[0] if end.message else ''}")
    else:
        report(f"trial {trial.number} finished: {study.metric} = {format_quantity(end.value)}")
    return end is not None


def _stop(running: Sequence[tuple[Trial, Process | None]], pause: float) -> None:
    """Stop trials as `trainkit send RUN stop` does, and wait until they have ended."""
    for trial, process in running:
        if process is not None:
            process.terminate()
        else:
            with suppress(TrainkitError, OSError):
                commands.send(trial.directory, "stop", None)
    while any((process and process.poll() is None) or is_training(trial.directory) for trial, process in running):
        time.sleep(pause)


def divide_devices(at_once: int, platform: str) -> list[dict[str, str]]:
    """Return what the environment of each of so many processes needs, so that they divide the GPUs of this machine.

    Raises:
        TrainkitError: there are fewer GPUs than processes.
    """
    gpus = [] if platform == "cpu" else _gpus()
    if at_once == 1 or not gpus:
        return [{} for _ in range(at_once)]
    if len(gpus) < at_once:
        raise TrainkitError(
            f"sweep.at_once = {at_once}, but there are {len(gpus)} GPUs",
            where="sweep.at_once",
            hint=f"at most one trial on each: at_once = {len(gpus)}",
        )
    share = len(gpus) // at_once
    parts = [gpus[slot * share : (slot + 1) * share] for slot in range(at_once)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


def _gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]
