"""Going back to the last good checkpoint without some steps, and which checkpoints are good.

The steps that are left out are in the log and in the manifests of later checkpoints. A checkpoint is good if its
manifest lists every one of them up to its own step: the others were made while training went wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainkit.checkpoint import store
from trainkit.events.log import EventLog
from trainkit.events.tail import of_kinds
from trainkit.parallel import hosts

if TYPE_CHECKING:
    from trainkit.train.verdicts import Rollback  # it imports jax, which an attempt does after its first events

#: The kind of the event.
KIND = "rolled_back"


def count_rollbacks(directory: Path) -> int:
    """Return how often a run was rolled back."""
    return sum(1 for _ in of_kinds(directory, KIND))


def left_out_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps of a run that rollbacks left out, in ascending order."""
    found = {int(step) for event in of_kinds(directory, KIND) for step in event["left_out"]}
    return tuple(sorted(found.union(*(info.manifest.left_out for info in store.checkpoints(directory)))))


def set_bad_aside(directory: Path, log: EventLog) -> None:
    """Set the checkpoints aside that hold updates of steps that are left out.

    Every attempt begins with it, because the one before may have been killed between the event and this.
    """
    left_out = left_out_steps(directory)
    bad = [
        info.step
        for info in store.checkpoints(directory)
        if not {step for step in left_out if step <= info.step} <= set(info.manifest.left_out)
    ]
    for step in store.set_aside(store.directory_of(directory), beyond=min(bad) - 1) if bad else ():
        message = f"the checkpoint of step {step} was set aside: it was made before the run was rolled back"
        log.write("log", step=log.step, level="info", message=message)


def roll_back(directory: Path, rollback: Rollback, log: EventLog) -> None:
    """Record the steps to leave out, and leave the run with good checkpoints only. The first process does it."""

    def record() -> None:
        first, last = rollback.left_out[0], rollback.left_out[-1]
        message = f"{rollback.problem} at step {rollback.step}; steps {first} to {last} are left out from now on"
        log.write(KIND, step=log.step, left_out=list(rollback.left_out), message=message)
        set_bad_aside(directory, log)

    hosts.from_first(record)
