"""What exports of every kind share: the model card's facts, and a directory that is written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainkit.errors import TrainkitError
from trainkit.events.attempts import current_events
from trainkit.events.commands import issued_commands
from trainkit.events.log import of_kinds
from trainkit.hub.card import Made, as_told
from trainkit.recipe.toml.load import Loaded
from trainkit.rundir.directory import disk_errors

#: What each command did that changed what was learned.
TOLD = {"rate": "learning rate {} times the schedule's", "decay": "the decay of the schedule began"}


@contextmanager
def draft(out: Path) -> Iterator[Path]:
    """A new directory that takes the place of `out` in the end; where anything is raised, none of it is left.

    An empty directory that is there stays the one that it is, and gets the files: somebody may stand in it, or it is a
    disk of its own.

    Raises:
        TrainkitError: there is something at `out`, or it cannot be written.
    """
    out = out.resolve()
    there = out.exists()
    if there and not (out.is_dir() and not any(out.iterdir())):
        raise TrainkitError("this path exists already", where=str(out), hint="name a directory that does not exist")
    around = out if there else out.parent
    with disk_errors(out, what="the export", then="export it again, or name another directory"):
        around.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=around))
        try:
            made.chmod(0o755)
            yield made
            if there:
                for path in list(made.iterdir()):
                    path.replace(out / path.name)
            else:
                made.replace(out)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def made_by(directory: Path, loaded: Loaded, step: int) -> Made:
    """What a model card says of how the model of a run came to be what it is at `step`."""
    begun = loaded.recipe.base_checkpoint
    return Made(
        name=str(loaded.recipe.run.name),
        step=step,
        recipe=as_told(loaded),
        # a directory of this machine, which a resolved recipe names in full, cannot be linked to
        base=None if begun is None or Path(begun).is_absolute() else begun,
        evaluations={
            event["name"]: {path.rpartition("/")[2]: value for path, value in event["metrics"].items()}
            for event in current_events(list(of_kinds(directory, "run_started", "evaluated")))
            if event["type"] == "evaluated" and event["step"] <= step
        },
        orders=[
            f"after step {found.step:,}: {TOLD[found.order.command].format(found.order.argument)}"
            for found in issued_commands(directory)
            if found.step < step
        ],
    )
