"""One Aim run, opened for writing. The only module that imports aim (3.29), and only when a run is opened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.schema import Event
from trainkit.track import mapping
from trainkit.track.progress import Progress

T = TypeVar("T")

#: Under this name Aim shows a run's messages.
MESSAGES = "__log_records"
#: Seconds to try again while another process holds a lock of the repository.
PATIENCE = 30.0


class AimRun:
    """Made by `open`. What is written twice under one step, name and context is there once."""

    def __init__(self, repository: Any, run: Any) -> None:
        self._repository = repository
        self._run = run
        self._experiment: str = run.experiment
        self.hash: str = run.hash

    @classmethod
    def open(cls, repository: Path, *, run_hash: str | None, experiment: str) -> AimRun:
        """Open an Aim run, a new one where `run_hash` is None or the repository does not know it.

        Raises TrainkitError where the repository cannot be opened, or another process keeps it locked.
        """
        from aim.sdk.errors import RunLockingError
        from aim.sdk.repo import Repo
        from aimrocks.errors import RocksIOError

        def attempt() -> AimRun:
            # one whose making was cut short has no version yet
            repo = Repo.from_path(str(repository), init=Repo.get_version(str(repository)) == (0, 0))
            known = run_hash if run_hash and repo.run_exists(run_hash) else None
            return cls(repo, _open(repo, known, experiment))

        try:
            return _patiently(attempt, (RunLockingError, RocksIOError, TimeoutError))
        except (RunLockingError, RocksIOError, OSError, RuntimeError) as error:
            raise TrainkitError(
                f"the Aim repository cannot be opened: {type(error).__name__}: {error}",
                where=str(repository / ".aim"),
                hint="see that it is a directory that can be written and that no other process uses this run",
                exit_code=FAILED,
            ) from error

    def set_parameters(self, parameters: dict[str, Any]) -> None:
        for key, value in parameters.items():
            self._run[key] = value

    def write(self, event: Event, progress: Progress) -> None:
        """Write what an event says. Counts messages in `progress`."""
        step: int = event["step"]
        for path, value in mapping.metrics(event).items():
            self._run.track(value, name=path, step=step, context=mapping.context(path))
        if event["type"] == "sampled":
            from aim import Text

            self._run.track(Text(event["text"]), name="samples", step=step, context={"prompt": event["prompt"]})
        if message := mapping.message(event):
            self._message(*message, at=event["t"], ordinal=progress.messages)
            progress.messages += 1
        if event["type"] == "run_started" and event["name"]:
            self._run.name = event["name"]
        self.set_parameters(mapping.parameters(event))

    def forget_beyond(self, step: int) -> None:
        """Delete the metrics and texts of later steps: they belong to a course that was given up.

        Aim has no call for that, so this does to its trees what its tracker (aim.sdk.tracker, 3.29) would have done.
        """
        for context, sequences in self._run.meta_run_tree.get("traces", {}).items():
            for name, about in sequences.items():
                if name != MESSAGES:
                    self._cut((context, name), about["version"], step)
        # the tracker remembers how long the sequences were
        self._run.close()
        self._run = _open(self._repository, self.hash, self._experiment)

    def _cut(self, sequence: tuple[int, str], version: int, step: int) -> None:
        is_metric = version == 2
        points = self._run.series_run_trees[version].subtree(sequence)
        # metrics are kept under a hash of their step, texts under the step itself
        steps = {
            key: value if is_metric else key for key, value in points.array("step" if is_metric else "time").items()
        }
        parts = list(points.keys())
        for key in [key for key, at in steps.items() if at > step]:
            del steps[key]
            for part in parts:
                del points[part, key]
        about = self._run.meta_run_tree.subtree(("traces", *sequence))
        about["last_step"] = max(steps.values(), default=-1)
        if is_metric:
            values = {at: points["val", key] for key, at in steps.items()}
            about["last"] = values.get(about["last_step"], 0.0)
            about["max"] = max(values.values(), default=-math.inf)
            about["min"] = min(values.values(), default=math.inf)

    def close(self) -> None:
        self._run.close()

    def index(self) -> None:
        """Enter the closed run into the repository's index, without which another process would see no metrics of it.

        A running `aim up` holds the index, and does it by itself.
        """
        from aim.sdk.index_manager import RepoIndexManager
        from aimrocks.errors import RocksIOError

        manager = RepoIndexManager.get_index_manager(self._repository)
        try:
            _patiently(lambda: manager.index(self.hash), (RocksIOError, TimeoutError))
        except (RocksIOError, TimeoutError) as error:
            print(f"the index of the Aim repository is in use, `aim up` will bring it up to date: {error}", flush=True)

    def _message(self, level: int, text: str, *, at: float, ordinal: int) -> None:
        from aim.sdk.logging import LogRecord

        record = LogRecord(text, level, timestamp=at, logger_info=("trainkit", 0))
        self._run.track(record, name=MESSAGES, step=ordinal)


def _open(repository: Any, run_hash: str | None, experiment: str) -> Any:
    from aim import Run

    # Forced: a killed sidecar leaves soft locks, of which an empty one cannot even be judged. That no other sidecar of
    # this run lives is known already, and RocksDB has a lock of its own.
    return Run(
        run_hash,
        repo=repository,
        experiment=experiment,
        force_resume=run_hash is not None,
        capture_terminal_logs=False,
        system_tracking_interval=None,
        log_system_params=False,
    )


def _patiently(attempt: Callable[[], T], locked: tuple[type[Exception], ...]) -> T:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
