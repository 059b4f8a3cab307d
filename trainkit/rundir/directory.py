"""A run's directory: made whole or not at all, and trained in by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import read
from trainkit.recipe.toml.load import Loaded, load_resolved
from trainkit.recipe.toml.values import dumps

RECIPE = "recipe.toml"
#: Where exports are, each named by its step.
EXPORTS = "exports"
#: What a disk says that takes no more: it is full, read-only, or not ours.
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
_MAKE_ROOM = "make room there or permit writing"


def create(loaded: Loaded) -> Path:
    """Make `DIRECTORY/NAME` with the resolved recipe in it.

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
        runs.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=runs))
    except OSError as error:
        raise TrainkitError(
            f"cannot create the run's directory: {error.strerror}",
            where=str(directory),
            hint=f'{_MAKE_ROOM}, or choose another place: --set run.directory="DIRECTORY"',
        ) from error
    try:
        draft.chmod(0o755)
        (draft / RECIPE).write_text(dumps(loaded.recipe, loaded.origins, loaded.path), encoding="utf-8")
        draft.rename(directory)
    except OSError as error:
        raise TrainkitError(
            f"the run's recipe cannot be written: {error.strerror}",
            where=str(directory),
            hint=f'{_MAKE_ROOM}, or choose another place: --set run.directory="DIRECTORY"',
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def recipe_of(directory: Path, overrides: Sequence[str] = ()) -> Loaded:
    """The recipe as the run's directory holds it, with `overrides` put over it. Raises TrainkitError."""
    return load_resolved(directory / RECIPE, overrides)


def replace_recipe(directory: Path, loaded: Loaded, *, attempt: int) -> None:
    """Put a changed recipe in place; the one of the attempts before stays beside it as `recipe.before-ATTEMPT.toml`."""
    new = directory / f".{RECIPE}.new"
    new.write_text(dumps(loaded.recipe, loaded.origins, loaded.path), encoding="utf-8")
    shutil.copy2(directory / RECIPE, directory / _before(attempt))
    os.replace(new, directory / RECIPE)


def restore_recipe(directory: Path, *, attempt: int) -> None:
    """Put the recipe of the attempts up to `attempt` back, where `replace_recipe` put another in its place."""
    with suppress(FileNotFoundError):
        os.replace(directory / _before(attempt), directory / RECIPE)


def _before(attempt: int) -> str:
    return f"recipe.before-{attempt}.toml"


def discard(directory: Path) -> None:
    """Delete a run that could not begin, so that its name is free; one in which a step was trained is kept."""
    if not any(event["type"] == "step" for event in read(directory)):
        shutil.rmtree(directory)


@contextmanager
def disk_errors(directory: Path, *, what: str = "the run", then: str | None = None) -> Iterator[None]:
    """Turns what a disk says that takes no more into a TrainkitError. Other errors of the system are let through.

    `what` cannot be written, and what to do `then`, once there is room; where None, to resume the run.
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
    """Hold the run's lock. The kernel lets go of it when the process ends, however it ends.

    Raises:
        TrainkitError: another process is training this run.
    """
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode().strip()
            raise TrainkitError(
                f"process {holder or '?'} is training this run",
                where=str(directory),
                hint=f"to watch it: trainkit watch {as_typed(directory)}"
                f"   to stop it: trainkit send {as_typed(directory)} stop",
            ) from None
        os.truncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            os.truncate(fd, 0)  # to viewers, the process that it names is at work on the run
    finally:
        os.close(fd)


def as_typed(directory: Path) -> str:
    """The path as a person would type it here."""
    here = Path.cwd()
    return str(directory.relative_to(here) if directory.is_relative_to(here) else directory)


def _free_name(runs: Path, name: str) -> str:
    number = 2
    while (runs / f"{name}-{number}").exists():
        number += 1
    return f"{name}-{number}"
