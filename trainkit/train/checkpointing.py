"""When checkpoints are written, and their events in the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import KINDS, Kind
from trainkit.checkpoint.provenance import Provenance
from trainkit.checkpoint.saver import Saved, Saver
from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import RETRY_AFTER, EventLog
from trainkit.parallel import hosts
from trainkit.recipe.sections.outputs import Checkpoint
from trainkit.rundir import checkpoint_files
from trainkit.rundir.checkpoint_files import BestMark
from trainkit.rundir.directory import RunMoved
from trainkit.train.state import State, without_frozen


class CheckpointReader(Protocol):
    """Reads checkpoints while training continues, such as for exports."""

    def wants(self, step: int, /) -> bool:
        """Return whether it needs a checkpoint of this step, even if nothing else asks for one."""

    def take(self, step: int, /, *, last: bool) -> None:
        """Read the checkpoint of this step, which is on disk."""

    def needed_steps(self) -> Collection[int]:
        """Return the steps whose checkpoints it still needs. Any thread may call it."""

    def poll(self) -> None:
        """Check on its work. Does not wait."""


def _now() -> float:
    """Return the time of the first process in seconds, so that all processes agree on what is due."""
    return hosts.from_first(time.monotonic)


class CheckpointNotWritten(TrainkitError):
    """Every try to write the last checkpoint of an attempt failed."""


class Checkpointing:
    """Saves when the recipe, a command or the reader of checkpoints asks for it, and at the end of an attempt.

    A save that fails during training is an alert, and the next save that is due tries again. The last one of an attempt
    is tried several times, and must succeed.
    """

    def __init__(
        self,
        directory: Path,
        spec: Checkpoint,
        *,
        provenance: Callable[[bool], Provenance],
        log: EventLog,
        reader: CheckpointReader | None = None,
        restored: int | None = None,
        on_saved: Callable[[float], None] = lambda seconds: None,
        goes_back: int | None = None,
    ) -> None:
        """`provenance` is called with whether the checkpoint is the run's last. `restored` is the step from which the
        state was restored, if its checkpoint still holds that state. `on_saved` is called with the seconds of each
        save, by any thread. `goes_back` is how many steps a rollback may go back: a checkpoint before them stays."""
        self._goes_back = goes_back
        self._spec = spec
        self._provenance = provenance
        self._log = log
        self._reader = reader
        self._on_saved = on_saved
        self._directory = directory
        #: The best checkpoint, and the one that is being written to take its place.
        self._best = self._next_best = checkpoint_files.best(directory)
        self._saver = Saver(directory, on_saved=self._report_saved, held=self._held_steps, keep_last=spec.keep_last)
        self._last_time = _now()
        #: The step and kind of the checkpoint that was saved or started last.
        kinds = {info.step: info.manifest.kind for info in store.checkpoints(directory) if info.step == restored}
        self._saved_step: int | None = restored if restored in kinds else None
        #: The newest step that is on disk, of this attempt or restored.
        self._on_disk = self._saved_step
        self._saved_kind: Kind | None = kinds.get(restored) if restored is not None else None

    def is_due(self, step: int) -> bool:
        """Return whether the recipe or the reader asks for a checkpoint of this step that does not exist."""
        return step != self._saved_step and (self._due_kind(step) is not None or self._is_wanted(step))

    def save(self, state: State, step: int, *, last: bool = False, requested: bool = False) -> bool:
        """Save in the background if a checkpoint is due, and return whether it was.

        The caller may donate the state to the next step as soon as this returns.
        """
        due = self._due_kind(step)
        kind: Kind | None = "final" if last else due if due == "permanent" else "requested" if requested else due
        if kind is None and self._is_wanted(step):
            kind = "rolling"
        if kind is None or (step == self._saved_step and not requested and not self._is_more(kind)):
            return False
        with self._alert_on_failure():
            self._start(state, step, kind, last=last)
        return True

    def save_best(self, state: State, mark: BestMark) -> None:
        """Save the state of this step, if it is not on disk yet, and keep it as the best until another one is better.

        The one before stays the best until this one is on disk."""
        self._next_best = mark
        with self._alert_on_failure():
            if mark.step == self._on_disk:
                self._mark_best(mark)
            elif mark.step != self._saved_step:
                self._start(state, mark.step, "rolling", last=False)

    def keep_best(self, mark: BestMark | None) -> None:
        """Let the checkpoint of this step be the best where it is on disk, as the log of earlier attempts says.

        Where it is not, the best before it by the same metric stays, as when it could not be written."""
        self._next_best = mark
        steps, before = hosts.from_first(lambda: ({i.step for i in store.checkpoints(self._directory)}, self._best))
        self._best = before
        exists = mark is not None and mark.step in steps
        if mark is not None and not exists:
            message = f"step {mark.step} is the best so far by {mark.metric}, but its checkpoint no longer exists"
            self._log.write("alert", step=self._log.step, kind="checkpoint", message=message)
            if before is not None and before.step in steps and before.metric == mark.metric:
                return
        if mark != before or not exists:
            with self._alert_on_failure():
                self._mark_best(mark if exists else None)

    def save_and_wait(self, state: State, step: int, *, last: bool) -> None:
        """Return once the last state of the attempt is on disk; `last` if it is also the run's last.

        A save that fails is an alert, and is tried again after each of `RETRY_AFTER` seconds.

        Raises:
            CheckpointNotWritten: every try failed.
            ProcessFailed: one of the processes of the run failed.
        """
        for seconds in (*RETRY_AFTER, None):
            try:
                self._saver.wait()
                kind: Kind = "final" if last else self._due_kind(step) or "rolling"
                if step != self._saved_step or self._is_more(kind):
                    self._start(state, step, kind, last=last)
                    self._saver.wait()
                return
            except TrainkitError as error:
                self._saved_step = None
                if isinstance(error, hosts.ProcessFailed | RunMoved):
                    raise
                if seconds is None:
                    raise CheckpointNotWritten(
                        error.problem, where=error.where, hint=error.hint, exit_code=error.exit_code
                    ) from error
                self._alert(error, f"trying again in {seconds:g} s")
                time.sleep(seconds)

    def report(self, step: int) -> None:
        """Log a save that finished or failed since the last call. Does not wait."""
        with self._alert_on_failure():
            self._saver.poll()
        if self._reader:
            self._reader.poll()

    def close(self) -> None:
        """Return once the present save has ended."""
        try:
            with self._alert_on_failure():
                self._saver.close()
        except hosts.ProcessFailed as error:  # the attempt ends with an error of its own
            self._alert(error, "the last save was not finished")

    def _start(self, state: State, step: int, kind: Kind, *, last: bool) -> None:
        with self._alert_on_failure():  # the previous save
            self._saver.wait()
        self._log.write("checkpoint_started", step=step, kind=kind)
        self._require_log()
        self._saved_step, self._saved_kind, self._last_time = step, kind, _now()
        try:
            self._saver.save(without_frozen(state), step=step, kind=kind, provenance=self._provenance(last))
        except BaseException:  # whatever ends the run may still save this step
            self._saved_step = None
            raise

    def _require_log(self) -> None:
        """Raise TrainkitError unless the log is in its place and holds every step so far, in all processes alike."""
        in_place, problem = hosts.from_first(lambda: (self._log.is_in_place(), self._log.why_incomplete()))
        if not in_place:
            raise RunMoved(self._directory)
        if problem:
            hint = "make room or make it writable, then: trainkit resume RUN"
            message = f"the log cannot be written: {problem}"
            raise TrainkitError(message, where=str(self._directory), hint=hint, exit_code=FAILED)

    @contextmanager
    def _alert_on_failure(self) -> Iterator[None]:
        try:
            yield
        except TrainkitError as error:
            self._saved_step = None
            if isinstance(error, hosts.ProcessFailed | RunMoved):  # the run ends, in all processes alike
                raise
            self._alert(error, "the next save tries again")

    def _alert(self, error: TrainkitError, consequence: str) -> None:
        message = f"{error.where}: {error.problem}; {consequence}"
        self._log.write("alert", step=self._log.step, kind="checkpoint", message=message)

    def _held_steps(self) -> set[int]:
        """Return the steps whose checkpoints must stay; the thread that writes calls this."""
        best = {mark.step for mark in (self._best, self._next_best) if mark is not None}
        return best | self._good_steps() | set(self._reader.needed_steps() if self._reader else ())

    def _good_steps(self) -> set[int]:
        """Return the newest checkpoint that is too old for a rollback to abandon, and the one that will be the next."""
        if self._goes_back is None or self._saved_step is None:
            return set()
        steps = [int(path.name) for path in store.step_directories(self._directory)]
        limit = self._saved_step - self._goes_back
        return {*[step for step in steps if step <= limit][-1:], *[step for step in steps if step > limit][:1]}

    def _mark_best(self, mark: BestMark | None) -> None:
        problem = hosts.from_first(lambda: self._write_mark(mark))
        if problem is not None:  # in every process, so that all of them try the next save again
            where = str(self._directory / "checkpoints")
            raise TrainkitError(f"the best checkpoint cannot be marked: {problem}", where=where)
        self._best = mark
        if mark is not None:
            message = f"checkpoint {mark.step} is the best so far: {mark.metric} is {mark.value:.6g}"
            self._log.write("log", step=self._log.step, level="info", message=message)

    def _write_mark(self, mark: BestMark | None) -> str | None:
        """Mark the best checkpoint on the disk, and return what went wrong."""
        try:
            if mark is not None:
                store.note_metric(self._directory, mark.step, mark.metric, mark.value)
            checkpoint_files.mark_best(self._directory, mark)
        except (OSError, TrainkitError) as error:
            return str(error)
        return None

    def _due_kind(self, step: int) -> Kind | None:
        return store.due(self._spec, step=step, last_saved_time=self._last_time, now=_now())

    def _is_more(self, kind: Kind) -> bool:
        """Return whether this kind is kept longer than that of the existing checkpoint."""
        return self._saved_kind is None or KINDS.index(kind) > KINDS.index(self._saved_kind)

    def _is_wanted(self, step: int) -> bool:
        return self._reader is not None and self._reader.wants(step)

    def _report_saved(self, saved: Saved) -> None:
        self._log.write(
            "checkpoint_saved",
            step=saved.step,
            kind=saved.kind,
            path=saved.path,
            bytes=saved.bytes,
            seconds=round(saved.seconds, 3),
        )
        self._on_saved(saved.seconds)
        self._on_disk = saved.step
        if self._next_best != self._best and self._next_best is not None and self._next_best.step == saved.step:
            self._mark_best(self._next_best)
        if self._reader:
            self._reader.take(saved.step, last=saved.kind == "final")
