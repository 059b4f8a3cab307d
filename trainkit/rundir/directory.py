"""A run's directory: created whole or not at all, with one trainer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainkit import files
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.held import PASSING
from trainkit.events.tail import of_kinds
from trainkit.printer import quote
from trainkit.recipe.toml.load import Loaded, load_resolved
from trainkit.recipe.toml.values import dumps
from trainkit.rundir import kept_secrets

RECIPE, TOKENIZER = "recipe.toml", "tokenizer.json"
#: In the directory of a run: a directory for each step that broke, named by the step.
BLACK_BOXES = "blackbox"
#: The directory of exports within a run; each export is named by its step.
EXPORTS = "exports"
#: In the directory of a trial: which sweep it belongs to.
SWEEP = "sweep.json"
#: In the directory of a run that a job of Slurm began: which one.
JOB = "job.json"
#: The errors of a disk that refuses to write: it is full, read-only, failing, or belongs to somebody else; and those of
#: a directory or a loop of links in the place of a file.
_REFUSALS = (
    *PASSING, errno.EFBIG, errno.EACCES, errno.EPERM,
    errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip
_MAKE_ROOM = "make room there or permit writing"
#: How often, and after how many seconds each, a lock is tried that a process without a name holds.
_TRIES, _BETWEEN_TRIES = 10, 0.05


class RunMoved(TrainkitError):
    """The run's directory was deleted, moved or replaced under its trainer, so that nothing can be saved in it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            "the run's directory was deleted or moved while it trained: what it had not saved is lost",
            where=str(directory),
            hint="if it was moved, resume it where it is now: trainkit resume RUN",
            exit_code=FAILED,
        )


def create(loaded: Loaded) -> Path:
    """Create `DIRECTORY/NAME` with the resolved recipe, and return its path.

    Raises:
        TrainkitError: the run exists already, or cannot be written.
    """
    runs, name = Path(loaded.recipe.run.directory), str(loaded.recipe.run.name)
    directory = runs / name
    if directory.exists():
        raise TrainkitError(
            f"the run '{name}' exists already",
            where=str(directory),
            hint=f"to continue it: trainkit resume {as_typed(directory)}"
            f"   or start another: --name {_free_name(runs, name)}",
        )
    try:
        files.make_directory(runs)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=runs))
    except OSError as error:
        raise TrainkitError(
            f"cannot create the run's directory: {error.strerror}",
            where=str(directory),
            hint=f'{_MAKE_ROOM}, or choose another place: --set run.directory="DIRECTORY"',
        ) from error
    try:
        draft.chmod(0o755)
        files.write(draft / RECIPE, dumps(loaded.recipe, loaded.origins, loaded.path))
        if job := os.environ.get("SLURM_JOB_ID"):
            files.write_json(draft / JOB, {"slurm": job})
        kept_secrets.keep(draft, loaded.recipe)
        draft.rename(directory)
        files.sync_directory(runs)
    except OSError as error:
        raise TrainkitError(
            f"the run's recipe cannot be written: {error.strerror}",
            where=str(directory),
            hint=f'{_MAKE_ROOM}, or choose another place: --set run.directory="DIRECTORY"',
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def run_of_requeued_job(loaded: Loaded) -> Path | None:
    """Return the run that this job of Slurm began before it was requeued; None if it is no such job, or began none."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "")
    if not job or not restarts.isdecimal() or not int(restarts):
        return None
    directory = Path(loaded.recipe.run.directory) / str(loaded.recipe.run.name)
    try:
        return directory if files.read_json(directory / JOB).get("slurm") == job else None
    except (OSError, ValueError):
        return None


def recipe_of(directory: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Return the recipe in a run's directory, with `overrides` applied. Raises TrainkitError."""
    return load_resolved(directory / RECIPE, overrides, secrets=kept_secrets.read(directory))


def tokenizer_checksum(directory: Path) -> str | None:
    """Return the checksum of the tokenizer in a run's directory; None if there is none, as where data is no text."""
    path = directory / TOKENIZER
    return files.checksum_of(path) if path.exists() else None


def write_sweep(directory: Path, *, name: str, trial: int, settings: Mapping[str, Any]) -> None:
    """Write which trial of a sweep a run is, for its trackers; the keys of `settings` are dotted."""
    parameters: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        table = parameters
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = value
    files.write_json(directory / SWEEP, {"name": name, "trial": trial, "parameters": parameters})


def read_sweep(directory: Path) -> dict[str, Any] | None:
    """Return what `write_sweep` wrote; None of a run in no sweep. Raises TrainkitError if the file is damaged."""
    path = directory / SWEEP
    try:
        found = files.read_json(path)
        return {"name": str(found["name"]), "trial": int(found["trial"]), "parameters": dict(found["parameters"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise TrainkitError(
            "the file that says which trial of a sweep this run is, is damaged",
            where=str(path),
            hint="delete it: trackers then show the run without its sweep. The command of the sweep writes it again for"
            " a trial that has not ended",
            exit_code=FAILED,
        ) from error


def replace_recipe(directory: Path, loaded: Loaded, *, attempt: int) -> None:
    """Write a changed recipe, and keep the one of the attempts so far as `recipe.before-ATTEMPT.toml`."""
    files.write(directory / _before(attempt), (directory / RECIPE).read_bytes())
    files.write(directory / RECIPE, dumps(loaded.recipe, loaded.origins, loaded.path))
    kept_secrets.keep(directory, loaded.recipe, attempt=attempt)


def restore_recipe(directory: Path, *, attempt: int) -> None:
    """Restore the recipe that `replace_recipe` kept for `attempt`, if it kept one."""
    with suppress(FileNotFoundError):
        os.replace(directory / _before(attempt), directory / RECIPE)
        kept_secrets.restore(directory, attempt=attempt)
        files.sync_directory(directory)


def _before(attempt: int) -> str:
    return f"recipe.before-{attempt}.toml"


def discard(directory: Path) -> None:
    """Delete a run that could not begin, so that its name is free. A run that has trained a step is kept."""
    if next(of_kinds(directory, "step"), None) is None:
        shutil.rmtree(directory)


@contextmanager
def disk_errors(directory: Path, *, what: str = "the run", then: str | None = None) -> Iterator[None]:
    """Turn errors of a disk that refuses to write into a TrainkitError. Other errors pass through.

    Args:
        what: what cannot be written.
        then: what to do once the disk accepts writes again; by default resume the run.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise TrainkitError(
            f"{what} cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            hint=f"{_MAKE_ROOM}, then: {then or f'trainkit resume {as_typed(directory)}'}",
            exit_code=FAILED,
        ) from error


@contextmanager
def hold_lock(directory: Path) -> Iterator[None]:
    """Hold the run's lock within the block. The kernel releases it when the process ends, however it ends.

    It is a lock on the file `lock`, which names this process, and one on the directory itself, where the file system
    allows that: it excludes a second trainer even if the file was deleted.

    Raises:
        TrainkitError: another process is training this run.
    """
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    whole = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock_for_training(fd, directory)
        with suppress_unsupported():
            _lock_for_training(fd, directory, whole)
        os.truncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            os.truncate(fd, 0)  # a viewer takes the process named here for the trainer
    finally:
        os.close(whole)
        os.close(fd)


def _lock_for_training(fd: int, directory: Path, locked: int | None = None) -> None:
    """Lock the file `fd`, or `locked`, for this process alone. Raises TrainkitError, which names the holder."""
    for left in reversed(range(_TRIES)):
        try:
            return fcntl.flock(fd if locked is None else locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode().strip()
            if holder or not left:
                break
            time.sleep(_BETWEEN_TRIES)  # whoever asks whether the run is trained holds it for a moment, without a name
    typed = as_typed(directory)
    raise TrainkitError(
        f"{f'process {holder}' if holder else 'another process'} is training this run",
        where=str(directory),
        hint=f"to watch it: trainkit watch {typed}   to stop it: trainkit send {typed} stop",
    )


@contextmanager
def suppress_unsupported() -> Iterator[None]:
    """Suppress the error of a file system that locks no directories, such as NFS; not that of one that is locked."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        pass


def lock_paths(directory: Path) -> tuple[Path, Path]:
    """Return what `hold_lock` locks of a run: a file, which may be missing, and the directory."""
    return directory / "lock", directory


def is_training(directory: Path) -> bool:
    """Return whether a process holds the run's lock."""
    for path in lock_paths(directory):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            with suppress_unsupported():
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def as_typed(directory: Path) -> str:
    """Return the path as a person would type it in a shell in the working directory."""
    here = Path.cwd()
    typed = str(directory.relative_to(here) if directory.is_relative_to(here) else directory)
    return quote(f"./{typed}" if typed.startswith("-") else typed)


def _free_name(runs: Path, name: str) -> str:
    number = 2
    while (runs / f"{name}-{number}").exists():
        number += 1
    return f"{name}-{number}"
