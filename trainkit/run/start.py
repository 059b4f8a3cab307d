"""How an attempt begins, and what the log says of it first."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from importlib.metadata import version

from trainkit.errors import TrainkitError
from trainkit.events.commands import IssuedCommand
from trainkit.events.log import EventLog
from trainkit.events.process import process_started
from trainkit.events.schema import SCHEMA
from trainkit.recipe.toml.load import Loaded

#: Whose versions are part of what a run is: bits may differ where they do.
PACKAGES = ("trainkit", "jax", "jaxlib", "equinox", "optax", "numpy", "tensorstore", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Start:
    """From where to go on: from the checkpoint of `step`, or, where that is None, from the newest good one, if any."""

    step: int | None = None
    reset_optimizer: bool = False
    forget_orders: bool = False
    """Repeat none of the orders that came after the checkpoint."""
    orders: tuple[IssuedCommand, ...] = ()
    """On the run's course so far, as the log has them when the attempt begins."""
    profile: tuple[int, int] | None = None
    """The first and the last step to be traced."""

    def repeated(self, *, after: int) -> list[IssuedCommand]:
        """The orders that an attempt which goes on from step `after` carries out again."""
        return [] if self.forget_orders else [given for given in self.orders if given.step > after]


def steps_of(text: str) -> tuple[int, int]:
    """`20:25` as the first and the last step to be traced. Raises TrainkitError where it is not that."""
    found = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text.strip(), re.ASCII)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first <= last:
        why = f": {first} comes after {last}" if first > last else ": steps are counted from 1" if found else ""
        raise TrainkitError(
            f"{text!r} is no range of steps{why}",
            where="--profile",
            hint="FIRST:LAST, both of them traced, such as --profile 20:25",
        )
    return first, last


def announce(log: EventLog, loaded: Loaded, start: Start, *, resumed_from: int | None) -> None:
    """Write `run_started`. It is written again where the attempt has to begin further back than it meant to."""
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
