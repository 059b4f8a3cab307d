"""When checkpoints are written, and what the log says of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from trainkit.checkpoint import store
from trainkit.checkpoint.manifest import Kind
from trainkit.checkpoint.saver import Facts, Saved, Saver
from trainkit.events.log import EventLog
from trainkit.recipe.upkeep import Checkpoint
from trainkit.train.state import State, lasting


class Reader(Protocol):
    """What is made of checkpoints while training goes on."""

    def wants(self, step: int, /) -> bool:
        """Whether it needs a checkpoint of this step that nobody else may have asked for."""

    def take(self, step: int, /, *, last: bool) -> None:
        """The checkpoint of this step is on disk, whole."""

    def held(self) -> Collection[int]:
        """Steps whose checkpoints it still needs. May be called from any thread."""

    def poll(self) -> None:
        """Look after what it does. Does not wait."""


class Saving:
    """Saves as the recipe asks, as people ask, for who reads checkpoints, and always at the end."""

    def __init__(
        self,
        directory: Path,
        spec: Checkpoint,
        *,
        facts: Callable[[bool], Facts],
        log: EventLog,
        reader: Reader | None = None,
    ) -> None:
        """`facts` is called with whether the checkpoint is the last."""
        self._spec = spec
        self._facts = facts
        self._log = log
        self._reader = reader
        self._saver = Saver(directory, on_saved=self._saved, held=reader.held if reader else frozenset)
        self._last = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether the recipe, or who reads checkpoints, asks for one after this step."""
        return self._kind(step) is not None or self._is_wanted(step)

    def save(self, state: State, step: int, *, last: bool, requested: bool, stopping: bool) -> bool:
        """Save, if there is any reason to, and say whether there was: returns when the state may be donated, and
        writes in the background.

        Raises:
            TrainkitError: the save before this one could not be written.
        """
        due = self._kind(step)
        kind: Kind | None = "final" if last else due if due == "permanent" else "requested" if requested else due
        if kind is None and (stopping or self._is_wanted(step)):
            kind = "rolling"
        if kind is None:
            return False
        self._log.write("checkpoint_started", step=step, kind=kind)
        self._saver.save(lasting(state), step=step, kind=kind, facts=self._facts(last))
        self._last = time.monotonic()
        return True

    def report(self, step: int) -> None:
        """Log a save that has ended since; raises TrainkitError where it failed. Does not wait."""
        self._saver.poll()
        if self._reader:
            self._reader.poll()

    def settle(self) -> None:
        """Return once the save that is under way is on disk; raises TrainkitError where it failed."""
        self._saver.wait()

    def finish(self) -> None:
        """Return once everything is on disk; raises TrainkitError where that failed."""
        self._saver.close()

    def _kind(self, step: int) -> Kind | None:
        return store.due(self._spec, step=step, last_saved_time=self._last, now=time.monotonic())

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
