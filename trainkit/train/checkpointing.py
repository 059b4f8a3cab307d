"""When checkpoints are written, and what the log says of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import KINDS, Kind
from trainkit.checkpoint.saver import Provenance, Saved, Saver
from trainkit.errors import TrainkitError
from trainkit.events.log import EventLog
from trainkit.recipe.sections.upkeep import Checkpoint
from trainkit.train.state import State, without_frozen


class CheckpointReader(Protocol):
    """What is made of checkpoints while training goes on."""

    def wants(self, step: int, /) -> bool:
        """Whether it needs a checkpoint of this step that nobody else may have asked for."""

    def take(self, step: int, /, *, last: bool) -> None:
        """The checkpoint of this step is on disk, whole."""

    def held(self) -> Collection[int]:
        """Steps whose checkpoints it still needs. May be called from any thread."""

    def poll(self) -> None:
        """Look after what it does. Does not wait."""


class Checkpointing:
    """Saves as the recipe asks, as people ask, for who reads checkpoints, and always at the end.

    A save that fails while training goes on is an alert, and is tried again when the next one is due. One that is the
    end of an attempt has to succeed.
    """

    def __init__(
        self,
        directory: Path,
        spec: Checkpoint,
        *,
        facts: Callable[[bool], Provenance],
        log: EventLog,
        reader: CheckpointReader | None = None,
        there: int | None = None,
    ) -> None:
        """`facts` is called with whether the checkpoint is the last. The state of step `there` is as its checkpoint, if
        there is one."""
        self._spec = spec
        self._facts = facts
        self._log = log
        self._reader = reader
        held = reader.held if reader else frozenset
        self._saver = Saver(directory, on_saved=self._saved, held=held, keep_last=spec.keep_last)
        self._last = time.monotonic()
        #: The step whose state is on disk or on its way there, as what, and whether an attempt can do without it.
        found = {info.step: info.manifest.kind for info in store.checkpoints(directory) if info.step == there}
        self._there: int | None = there if there in found else None
        self._there_as: Kind | None = found.get(there) if there is not None else None
        self._optional = True

    def is_due(self, step: int) -> bool:
        """Whether the recipe, or who reads checkpoints, asks for one after this step that there is not yet."""
        return step != self._there and (self._kind(step) is not None or self._is_wanted(step))

    def save(self, state: State, step: int, *, last: bool, requested: bool, stopping: bool) -> bool:
        """Save, if there is any reason to, and say whether there was: returns when the state may be donated, and
        writes in the background.

        Raises:
            TrainkitError: there was no room for a copy, and this one, which ends the attempt, could not be written.
        """
        due = self._kind(step)
        kind: Kind | None = "final" if last else due if due == "permanent" else "requested" if requested else due
        if kind is None and (stopping or self._is_wanted(step)):
            kind = "rolling"
        if kind is None or (step == self._there and not requested and not self._is_more(kind)):
            self._optional &= not stopping
            return False
        with self._tolerant():  # of the one before
            self._saver.wait()
        self._log.write("checkpoint_started", step=step, kind=kind)
        self._there, self._there_as, self._optional = step, kind, not (last or stopping)
        self._last = time.monotonic()
        with self._tolerant():
            self._saver.save(without_frozen(state), step=step, kind=kind, facts=self._facts(last))
        return True

    def report(self, step: int) -> None:
        """Log a save that has ended since, or has failed. Does not wait."""
        with self._tolerant():
            self._saver.poll()
        if self._reader:
            self._reader.poll()

    def settle(self) -> None:
        """Return once the save that is under way has ended; raises TrainkitError where it failed and may not."""
        with self._tolerant():
            self._saver.wait()

    def finish(self) -> None:
        """Return once everything is on disk; raises TrainkitError where that failed and may not."""
        with self._tolerant():
            self._saver.close()

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """A save that fails in this block is an alert, unless the attempt ends with it."""
        try:
            yield
        except TrainkitError as error:
            self._there = None
            if not self._optional:
                raise
            told = f"{error.where}: {error.problem}; training goes on, and the next save tries again"
            self._log.write("alert", step=self._log.step, kind="checkpoint", message=told)

    def _kind(self, step: int) -> Kind | None:
        return store.due(self._spec, step=step, last_saved_time=self._last, now=time.monotonic())

    def _is_more(self, kind: Kind) -> bool:
        """Whether a person wants to keep this kind more than what is there."""
        return self._there_as is None or KINDS.index(kind) > KINDS.index(self._there_as)

    def _is_wanted(self, step: int) -> bool:
        return self._reader is not None and self._reader.wants(step)

    def _saved(self, saved: Saved) -> None:
        self._log.write(
            "checkpoint_saved",
            step=saved.step,
            kind=saved.kind,
            path=saved.path,
            bytes=saved.bytes,
            seconds=round(saved.seconds, 3),
        )
        if self._reader:
            self._reader.take(saved.step, last=saved.kind == "final")
