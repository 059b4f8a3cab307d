"""The runs of a directory: find them, read them, delete one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.events.tail import NAME
from trainkit.printer import quote
from trainkit.rundir.directory import lock_paths, suppress_unsupported
from trainkit.rundir.summary import ENDED, SummaryReader, is_run


class RunList:
    """The runs of a directory, by name. Call `read` in a thread; any thread may use the rest meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summaries: dict[str, SummaryReader] = {}
        #: How many times all runs have been read.
        self.passes = 0

    def read(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Find the runs, and read what is new in each, the most recently written first."""
        names = _directories(self.directory)
        self.summaries = {name: self.summaries.get(name) or SummaryReader(self.directory / name) for name in names}
        for summary in self.summaries.values():
            summary.read(stop=stop)
            if stop():
                return
        self.passes += 1

    def measure(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Count the bytes that each run takes on disk. With many checkpoints this is slow."""
        for summary in self.summaries.values():
            summary.measure(stop=stop)

    def delete(self, name: str) -> None:
        """Delete a run's directory, or only the link if it is one. What links inside it point to is kept.

        Raises:
            TrainkitError: the run is being trained, it is not a run, or it cannot be deleted.
        """
        run = self.directory / name
        assert name == run.name and name not in ("", ".", ".."), "a run lies directly in the directory"
        where = str(run)
        try:
            if run.is_symlink():
                run.unlink()
                return
            if not is_run(run):
                raise TrainkitError("this is not a run", where=where, hint="it has neither a log nor a recipe")
            summary = SummaryReader(run)
            summary.read()
            if summary.facts and summary.facts.state is not None and summary.facts.state not in ENDED:
                raise _at_work(where, name)
            with _Lock(run) as free:
                if not free:
                    raise _at_work(where, name)
                # hidden at once, so that nobody ever sees half a run
                gone = run.rename(self.directory / f".trash-{name}-{os.getpid()}")
            shutil.rmtree(gone)
        except OSError as error:
            raise TrainkitError(
                f"it cannot be deleted: {error.strerror}",
                where=str(error.filename or run),
                hint="allow writing there, check that the disk is not read-only, then delete it again",
            ) from None


def neighbours(run_directory: Path) -> list[Path]:
    """Return the other runs in the directory of a run, the most recently written first."""
    absolute = run_directory.absolute()
    others = [absolute.parent / name for name in _directories(absolute.parent) if name != absolute.name]
    return [run for run in others if is_run(run)]


class _Lock:
    """The run's lock, if no trainer holds it; the kernel lets go of a trainer's when that dies."""

    def __init__(self, run: Path) -> None:
        self._paths, self._opened = lock_paths(run), list[int]()

    def __enter__(self) -> bool:
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                self._opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                try:
                    with suppress_unsupported():
                        fcntl.flock(self._opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def __exit__(self, *error: object) -> None:
        for fd in self._opened:
            os.close(fd)


def _at_work(where: str, name: str) -> TrainkitError:
    hint = f"stop it first: trainkit send {quote(name)} stop"
    return TrainkitError("it is being trained now", where=where, hint=hint)


def _directories(directory: Path) -> list[str]:
    """Return the names of the runs, the most recently written first, without drafts, whose names begin with a dot."""
    try:
        with os.scandir(directory) as entries:
            runs = [e for e in entries if not e.name.startswith(".") and (e.is_dir() or e.is_symlink())]
    except OSError:
        return []
    return [run.name for run in sorted(runs, key=lambda run: (-_written(run), run.name))]


def _written(entry: os.DirEntry[str]) -> float:
    try:
        return os.stat(os.path.join(entry.path, NAME)).st_mtime
    except OSError:
        return 0.0
