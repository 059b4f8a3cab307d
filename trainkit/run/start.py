"""How an attempt begins, and what the log says of it first."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib.metadata import version

from trainkit.events.log import EventLog
from trainkit.events.process import process_started
from trainkit.events.schema import SCHEMA
from trainkit.recipe.load import Loaded

#: Whose versions are part of what a run is: bits may differ where they do.
PACKAGES = ("trainkit", "jax", "jaxlib", "equinox", "optax", "numpy", "tensorstore", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Start:
    """From where to go on: from the checkpoint of `step`, or, where that is None, from the newest good one, if any."""

    step: int | None = None
    reset_optimizer: bool = False


def announce(log: EventLog, loaded: Loaded, *, resumed_from: int | None) -> None:
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
        versions={package: version(package) for package in PACKAGES},
    )
