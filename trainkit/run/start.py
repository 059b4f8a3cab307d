"""How an attempt begins, and its first event."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from importlib.metadata import version

from trainkit.errors import TrainkitError
from trainkit.events.attempts import process_started
from trainkit.events.commands import IssuedCommand
from trainkit.events.log import EventLog
from trainkit.events.schema import SCHEMA
from trainkit.recipe.toml.load import Loaded

#: Packages whose versions are logged: bits may differ between versions.
PACKAGES = ("trainkit", "jax", "jaxlib", "equinox", "optax", "numpy", "tensorstore", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an attempt begins: from the checkpoint of `step`; where that is None, from the newest good one, if any."""

    step: int | None = None
    reset_optimizer: bool = False
    forget_commands: bool = False
    """Repeat no command that came after the checkpoint."""
    issued: tuple[IssuedCommand, ...] = ()
    """The commands of the run so far, as the log has them when the attempt begins."""
    profile: tuple[int, int] | None = None
    """The first and the last step to trace."""

    def repeated(self, *, after: int) -> list[IssuedCommand]:
        """Return the commands that an attempt which continues from step `after` carries out again."""
        return [] if self.forget_commands else [given for given in self.issued if given.step > after]


def steps_of(text: str) -> tuple[int, int]:
    """Return the first and the last step to trace from a text such as `20:25`. Raises TrainkitError for other texts."""
    found = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text.strip(), re.ASCII)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first <= last:
        why = f": {first} comes after {last}" if first > last else ": steps are counted from 1" if found else ""
        raise TrainkitError(
            f"{text!r} is not a range of steps{why}",
            where="--profile",
            hint="write FIRST:LAST, such as --profile 20:25; both steps are traced",
        )
    return first, last


def announce(log: EventLog, loaded: Loaded, start: Start, *, resumed_from: int | None) -> None:
    """Write `run_started`; again if the attempt must begin at an earlier step than it first announced."""
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
        orders=[given.fields() for given in start.repeated(after=resumed_from or 0)],
        versions={package: version(package) for package in PACKAGES},
    )
