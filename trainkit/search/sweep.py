"""Running the trials of a sweep: so many processes at a time, each an ordinary run that can be resumed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from trainkit.errors import DONE, FAILED, STOPPED_EARLY, TrainkitError
from trainkit.events import commands
from trainkit.events.tail import last_attempt, last_end
from trainkit.parallel import hosts
from trainkit.recipe.toml.load import Loaded, locate_error
from trainkit.run.attempt import spawn
from trainkit.run.start import Start
from trainkit.rundir.directory import create, hold_lock, is_training, recipe_of, replace_recipe, write_sweep
from trainkit.search.study import Study
from trainkit.search.trials import Trial
from trainkit.text import format_quantity, plural

#: The ends of a run after which it is not continued.
ENDED = ("finished", "failed")
#: The variable that says which GPUs a process may use.
GPUS = "CUDA_VISIBLE_DEVICES"
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


def run(
    study: Study,
    report: Callable[[str], None],
    *,
    start: Starter = spawn_trial,
    look: Callable[[], None] = lambda: None,
    pause: float = PAUSE,
) -> int:
    """Run the trials that have not ended, and return the exit code.

    A trial that was cut off continues from its newest checkpoint; one that still runs, because only the sweep was
    killed, is waited for. Ctrl-C stops the trials with a checkpoint.

    Args:
        report: called with a line for people at the start and the end of each trial.
        look: called now and then while trials run.

    Raises:
        TrainkitError: another process runs the sweep, it was begun with another recipe, there are too few GPUs, this
            is one of several machines, or a trial cannot be created; those that run are stopped with a checkpoint.
    """
    if os.environ.get(hosts.ADDRESS):
        raise TrainkitError("a sweep works on one machine only", where=hosts.ADDRESS, hint=f"unset {hosts.ADDRESS}")
    slots = slots_of(study)
    study.directory.mkdir(parents=True, exist_ok=True)
    with _hold_lock(study.directory):
        study.begin()
        # one that was pruned may still train, if the sweep was killed before it stopped that
        waiting = [trial for trial in study.trials if trial.number not in study.ends or is_training(trial.directory)]
        running: dict[int, tuple[Trial, Process | None]] = {}
        unfinished = 0
        try:
            while True:
                for slot in range(len(slots)):
                    if slot not in running and (trial := waiting.pop(0) if waiting else study.propose()):
                        running[slot] = trial, _begin(study, trial, slots[slot], report, start)
                if not running:
                    break
                for slot, (trial, process) in list(running.items()):
                    ended = (process is None or process.poll() is not None) and not is_training(trial.directory)
                    if study.prunes(trial) and not ended:
                        _ask_to_stop(trial, process)
                    if ended:
                        del running[slot]
                        unfinished += not _end(study, trial, report)
                look()
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


def slots_of(study: Study) -> list[dict[str, str]]:
    """Return what the environment of each of the trials that run at once needs. Raises TrainkitError if there are too
    few devices."""
    base = study.recipes.base
    where = base.origins.get("sweep.at_once", "sweep.at_once")
    return divide_devices(study.spec.at_once, base.recipe.parallel.platform, where=where)


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
    name = f"trial {trial.number} of {study.total}: {trial.in_words}{_on(environment)}"
    if not trial.directory.exists():
        loaded = _loaded_now(study, trial)
        study.record_start(trial)
        create(loaded)
    elif is_training(trial.directory):
        report(f"{name}; it is running already")
        if trial.number in study.ends:
            _ask_to_stop(trial, None)
        return None
    elif last_end(trial.directory) in ENDED or study.prunes(trial):
        report(name)
        return None
    else:
        name += "; continued" + _give_time(study, trial)
    write_sweep(trial.directory, name=study.directory.name, trial=trial.number, settings=trial.settings)
    report(name)
    return start(trial.directory, environment)


def _loaded_now(study: Study, trial: Trial) -> Loaded:
    """Return the recipe of a trial. If its `train.until` is over, a time of day becomes that of the next day.

    Raises:
        TrainkitError: its `train.until` is a date and a time that are over.
    """
    loaded = trial.loaded
    assert loaded is not None
    if loaded.recipe.train.until is None or loaded.recipe.train.seconds_left(now=datetime.now(), spent=0) > 0:
        return loaded
    loaded = study.recipes.trial(trial.number, trial.settings).loaded
    assert loaded is not None
    try:
        loaded.recipe.train.check_time(datetime.now())
    except TrainkitError as error:
        raise locate_error(error, loaded) from None
    return loaded


def _give_time(study: Study, trial: Trial) -> str:
    """Let a trial that was cut off, and whose own `train.until` is over, end at the next time that the recipe of the
    sweep says; return that in words. Raises TrainkitError as `_loaded_now`, and if the recipe has no time any more."""
    own = recipe_of(trial.directory).recipe.train
    if own.until is None or own.seconds_left(now=datetime.now(), spent=0) > 0:
        return ""
    until = _loaded_now(study, trial).recipe.train.until
    if until is None:
        raise TrainkitError(
            f"trial {trial.number} was cut off, its time is over, and the recipe of the sweep has no train.until now",
            where=str(trial.directory),
            hint="write a later train.until in the recipe, or delete this directory: then the trial starts again",
        )
    # also a run that has done all but say so, which `trainkit resume` refuses
    with hold_lock(trial.directory):
        later = recipe_of(trial.directory, [f'train.until="{until}"'])
        replace_recipe(trial.directory, later, attempt=last_attempt(trial.directory))
    return f" until {until}, as its time was over"


def _on(environment: Mapping[str, str]) -> str:
    """Return the GPUs of an environment in words; empty where it has those of this process."""
    gpus = environment.get(GPUS, "")
    name = "GPUs" if "," in gpus else "GPU"
    return f"; on {name} {gpus}" if gpus else ""


def _end(study: Study, trial: Trial, report: Callable[[str], None]) -> bool:
    """Record how a trial ended; return whether it has ended and need not be continued."""
    end = study.record_end(trial)
    if end is None:
        report(f"trial {trial.number} was cut off; the same command continues it")
    elif end.status == "failed":
        report(f"trial {trial.number} failed: {end.message.splitlines()[0] if end.message else ''}")
    else:
        place = f" at step {end.steps}" if end.status == "pruned" else ""
        report(f"trial {trial.number} {end.status}{place}: {study.metric} = {format_quantity(end.value)}")
    return end is not None


def _ask_to_stop(trial: Trial, process: Process | None) -> None:
    """Let a trial save a checkpoint and end, as `trainkit send RUN stop` does."""
    if process is not None:
        process.terminate()
    else:
        with suppress(TrainkitError, OSError):
            commands.send(trial.directory, "stop", None)


def _stop(running: Sequence[tuple[Trial, Process | None]], pause: float) -> None:
    """Stop trials, and wait until they have ended."""
    for trial, process in running:
        _ask_to_stop(trial, process)
    while any((process and process.poll() is None) or is_training(trial.directory) for trial, process in running):
        time.sleep(pause)


def divide_devices(at_once: int, platform: str, *, where: str = "sweep.at_once") -> list[dict[str, str]]:
    """Return what the environment of each of so many processes needs, so that they divide the GPUs of this machine; on
    a CPU they share its cores.

    Args:
        where: the place of `at_once` in the recipe.

    Raises:
        TrainkitError: there are fewer GPUs, or cores of a CPU, than processes.
    """
    gpus = [] if platform == "cpu" else _gpus()
    count, what = (len(gpus), "GPU") if gpus else (cores(), "CPU core")
    if at_once == 1:
        return [{}]
    if count < at_once:
        raise TrainkitError(
            f"sweep.at_once = {at_once}, but there {'is' if count == 1 else 'are'} {plural(count, what)}",
            where=where,
            hint=f"at most one trial on each: at_once = {count}",
        )
    if not gpus:
        return [{} for _ in range(at_once)]
    share = len(gpus) // at_once
    parts = [gpus[slot * share : (slot + 1) * share] for slot in range(at_once)]
    return [{GPUS: ",".join(part)} for part in parts]


def cores() -> int:
    """Return how many cores of the CPU this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get(GPUS)
    if visible is not None:
        # CUDA takes no device after one that does not exist: -1 alone hides all
        return list(takewhile(lambda part: part not in ("", "-1"), map(str.strip, visible.split(","))))
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]
