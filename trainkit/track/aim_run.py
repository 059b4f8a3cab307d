"""One Aim run, opened for writing. The only module that imports aim (3.29), and only when a run is opened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.schema import Event
from trainkit.printer import show
from trainkit.recipe.sections.outputs import Track
from trainkit.track import projections
from trainkit.track.projections import TrackerProgress

T = TypeVar("T")

#: Under this name Aim shows a run's messages.
MESSAGES = "__log_records"
#: Seconds to try again while another process holds a lock of the repository.
PATIENCE = 30.0


class AimRun:
    """Made by `open`. What is written twice under one step, name and context is there once."""

    def __init__(self, repository: Any, run: Any, run_directory: Path, progress: TrackerProgress) -> None:
        self.progress = progress
        self._repository = repository
        self._run = run
        self._directory = run_directory

    @classmethod
    def open(cls, run_directory: Path, spec: Track, known: TrackerProgress | None) -> AimRun:
        """Open the Aim run of a run: a new one where none is `known`, or the recipe's repository does not have it.

        Raises TrainkitError where the repository cannot be opened, or another process keeps it locked.
        """
        from aim.sdk.errors import RunLockingError
        from aim.sdk.repo import Repo
        from aimrocks.errors import RocksIOError

        directory = Path(spec.repository).resolve()

        def attempt() -> AimRun:
            # one whose making was cut short has no version yet
            repo = Repo.from_path(str(directory), init=Repo.get_version(str(directory)) == (0, 0))
            known_here = known and known.repository == str(directory) and repo.run_exists(known.run)
            run = _open(repo, known.run if known and known_here else None, spec.experiment)
            progress = known if known and known_here else TrackerProgress(run=run.hash, repository=str(directory))
            return cls(repo, run, run_directory, progress)

        try:
            return _patiently(attempt, (RunLockingError, RocksIOError, TimeoutError))
        except (RunLockingError, RocksIOError, OSError, RuntimeError) as error:
            raise TrainkitError(
                f"the Aim repository cannot be opened: {type(error).__name__}: {error}",
                where=str(directory / ".aim"),
                hint="check that it is a writable directory and that no other process uses this run",
                exit_code=FAILED,
            ) from error

    def set_recipe(self, recipe: dict[str, Any]) -> None:
        self._run["recipe"] = recipe

    def set_sweep(self, sweep: dict[str, Any]) -> None:
        self._run["sweep"] = sweep

    def write(self, event: Event) -> None:
        for path, value in projections.metrics(event).items():
            self._track(value, path, event)
        for path, it in projections.distributions(event).items():
            from aim import Distribution

            self._track(Distribution(hist=it.counts, bin_range=(it.low, it.high)), path, event)
        match event["type"]:
            case "sampled":
                self._sample(event)
            case "checkpoint_saved":
                self._checkpoint(event)
            case "run_started" if event["name"]:
                self._run.name = event["name"]
        if message := projections.message(event):
            self._message(*message, at=event["t"], ordinal=self.progress.messages)
            self.progress.messages += 1
        for key, parameter in projections.parameters(event).items():
            self._run[key] = parameter

    def _track(self, value: Any, path: str, event: Event) -> None:
        self._run.track(value, name=path, step=event["step"], context=projections.context(path))

    def _sample(self, event: Event) -> None:
        from aim import Image, Text

        where: dict[str, Any] = {"step": event["step"], "context": {"prompt": event["prompt"]}}
        self._run.track(Text(event["text"]), name="samples", **where)
        if image := event.get("image"):
            path = (self._directory / image).resolve()
            if not path.is_relative_to(self._directory.resolve()):
                raise ValueError(f"{image!r} is not in the run's directory")
            try:
                picture = Image(str(path), caption=event["prompt"])
            except OSError as error:
                raise ValueError(f"{image!r} is not an image: {error}") from error
            self._run.track(picture, name="images", **where)

    def _checkpoint(self, event: Event) -> None:
        """Enter a checkpoint among the run's artifacts by reference: where it is, its step, kind, size and metrics.

        Aim's own `log_artifact` copies. That would double gigabytes, and keep what retention deletes: a reference may
        outlive its checkpoint. A rolling checkpoint takes the place of those that have gone from the disk for it.
        """
        from aim.sdk.objects.artifact import Artifact

        facts = {key: event[key] for key in ("step", "kind", "bytes")}
        base, path = self._directory.resolve(), event["path"]
        if event["kind"] == "rolling":
            self._forget_artifacts(
                lambda about: about["kind"] == "rolling" and not (base / "checkpoints" / str(about["step"])).exists()
            )
        artifact = Artifact(
            str(base / path), uri=base.as_uri(), name=path, metrics=self._metrics_at(event["step"]), **facts
        )
        self._run.meta_run_tree.subtree("artifacts")[path] = artifact

    def _metrics_at(self, step: int) -> dict[str, float]:
        """The metrics that have a value at a step, by path; those of one path in two contexts cannot be."""
        from aim.storage.hashing import hash_auto

        metrics = {}
        for context, name, about in self._sequences():
            if about["version"] == 2:
                value = self._run.series_run_trees[2].subtree((context, name)).get(("val", hash_auto(step)), None)
                if value is not None:
                    metrics[name] = value
        return metrics

    def _forget_artifacts(self, unwanted: Callable[[Any], bool]) -> None:
        for name, artifact in self._run.artifacts.items():
            if unwanted(artifact.storage):
                del self._run.meta_run_tree["artifacts", name]

    def _sequences(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """(context, name, what Aim knows of it) of all but the messages."""
        for context, sequences in self._run.meta_run_tree.get("traces", {}).items():
            for name, about in sequences.items():
                if name != MESSAGES:
                    yield context, name, about

    def forget_beyond(self, step: int) -> bool:
        """Aim has no call for it: this does to its trees what its tracker (aim.sdk.tracker, 3.29) would have done."""
        for context, name, about in self._sequences():
            self._cut((context, name), about["version"], step)
        self._forget_artifacts(lambda about: about["step"] > step)
        # the tracker remembers how long the sequences were
        experiment = self._run.experiment
        self._run.close()
        self._run = _open(self._repository, self.progress.run, experiment)
        return True

    def _cut(self, sequence: tuple[int, str], version: int, step: int) -> None:
        is_metric = version == 2
        points = self._run.series_run_trees[version].subtree(sequence)
        # metrics are kept under a hash of their step, all else under the step itself
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
        """Close the run, and enter it into the repository's index: without, another process would see no metrics of it.

        A running `aim up` holds the index, and does it by itself.
        """
        from aim.sdk.index_manager import RepoIndexManager
        from aimrocks.errors import RocksIOError

        self._run.close()
        manager = RepoIndexManager.get_index_manager(self._repository)
        try:
            _patiently(lambda: manager.index(self.progress.run), (RocksIOError, TimeoutError))
        except (RocksIOError, TimeoutError) as error:
            show(f"the index of the Aim repository is in use, `aim up` will bring it up to date: {error}")

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
