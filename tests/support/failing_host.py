"""`python -m trainkit` as one of two processes, in which something fails: `failing_host.py FAILURES ARGUMENTS …`.

FAILURES are names of functions below, separated by commas. Each lets something fail once, in one of the processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from jax.errors import JaxRuntimeError

from trainkit.checkpoint import saver
from trainkit.cli import program
from trainkit.data.batches.dataset import TrainSet
from trainkit.events.log import EventLog

NUMBER = int(os.environ.get("JAX_PROCESS_ID", 0))


def fail_once(owner: Any, name: str, error: Exception, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Let the first call of a function that is as wanted raise an error, and no other."""
    original, failed = getattr(owner, name), []

    def function(*arguments: Any, **named: Any) -> Any:
        if not failed and when(*arguments, **named):
            failed.append(1)
            raise error
        return original(*arguments, **named)

    setattr(owner, name, function)


def copy() -> None:
    if NUMBER == 1:
        fail_once(saver, "copy_leaves", JaxRuntimeError("RESOURCE_EXHAUSTED: of this test"))


def write() -> None:
    if NUMBER == 1:
        second = lambda self, *_: self._saves == 2  # noqa: E731
        fail_once(saver.Saver, "_write_parts", OSError("this disk is full"), second)


def batch() -> None:
    if NUMBER == 1:
        fail_once(TrainSet, "batch", OSError("this disk cannot be read"), lambda _, step, *__: step == 7)


def log() -> None:
    if NUMBER == 0:
        ninth = lambda _, kind, *, step, **__: kind == "step" and step == 9  # noqa: E731
        fail_once(EventLog, "write", OSError("this log cannot be written"), ninth)


if __name__ == "__main__":
    for failure in sys.argv.pop(1).split(","):
        globals()[failure]()
    program()
