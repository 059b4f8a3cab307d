"""How an attempt begins, and its first event."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from trainkit import __version__
from trainkit.checkpoint import store
from trainkit.events.attempts import process_started
from trainkit.events.commands import IssuedCommand, issued_commands
from trainkit.events.log import EventLog
from trainkit.events.schema import SCHEMA
from trainkit.recipe.toml.load import Loaded

#: Packages whose versions are logged, because results may differ between them.
PACKAGES = ("trainkit", "jax", "jaxlib", "equinox", "optax", "numpy", "tensorstore", "tokenizers")


def version_of(package: str) -> str:
    """Return the version of a package. trainkit itself need not be installed: it may run from a checkout."""
    return __version__ if package == "trainkit" else version(package)


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an attempt begins: from the checkpoint of `step`, or from the newest good one, if any, where that is None."""

    step: int | None = None
    reset_optimizer: bool = False
    forget_commands: bool = False
    """Repeat no command that came after the checkpoint."""
    issued: tuple[IssuedCommand, ...] = ()
    """The commands in the run's log when the attempt begins."""
    profile: tuple[int, int] | None = None
    """The first and the last step to trace."""

    def commands_to_repeat(self, *, after: int) -> list[IssuedCommand]:
        """Return the commands that an attempt repeats if it continues from step `after`."""
        return [] if self.forget_commands else [issued for issued in self.issued if issued.step > after]

    def again(self, directory: Path, *, log: EventLog) -> Start:
        """Return how the attempt begins again, from its newest checkpoint, after it ran out of memory.

        The commands that it received are repeated at their steps. If it has saved a checkpoint, the optimizer was
        already reset.
        """
        newest = store.newest(directory)
        has_saved = newest is not None and newest.manifest.attempt == log.attempt
        return replace(
            self,
            step=None,
            reset_optimizer=self.reset_optimizer and not has_saved,
            forget_commands=False,
            issued=tuple(issued_commands(directory)),
            profile=self.profile if self.profile and self.profile[0] > log.step else None,
        )


def announce(
    log: EventLog,
    loaded: Loaded,
    start: Start,
    *,
    resumed_from: int | None,
    forgotten: Sequence[IssuedCommand] = (),
) -> None:
    """Write `run_started`, or write it again if the attempt begins otherwise than it announced.

    `forgotten` are the commands that the attempt omits.
    """
    omitted = {"forgotten": [issued.fields() for issued in forgotten]} if forgotten else {}
    log.write(
        "run_started",
        step=resumed_from or 0,
        schema=SCHEMA,
        name=loaded.recipe.run.name,
        pid=os.getpid(),
        process_started=process_started(os.getpid()),
        host=socket.gethostname(),
        recipe=loaded.recipe.fingerprint(),
        resumed_from=resumed_from,
        orders=[issued.fields() for issued in start.commands_to_repeat(after=resumed_from or 0)],
        versions={package: version_of(package) for package in PACKAGES},
        **omitted,
    )
