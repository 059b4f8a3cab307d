"""`python -m trainkit` as one of two processes, in which something fails: `failing_host.py FAILURES ARGUMENTS …`.

FAILURES are names of functions below, separated by commas. Each lets something fail once, in one of the processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.errors import JaxRuntimeError

from trainkit.checkpoint import saver
from trainkit.cli import program
from trainkit.data.batches.dataset import TrainSet
from trainkit.events.log import EventLog
from trainkit.train import loop

#: The step of `poison` and of those that end a process or let it stand still.
BROKEN = 5
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


def before_step(process: int, action: Callable[[], Any]) -> None:
    """Do something in one process in the moment before it begins step `BROKEN`."""
    original = loop._advance

    def advance(state: Any, batch: Any, number: int, job: Any) -> Any:
        if process == NUMBER and number == BROKEN:
            action()
        return original(state, batch, number, job)

    loop._advance = advance


def kill_0() -> None:
    before_step(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def kill_1() -> None:
    before_step(1, lambda: os.kill(os.getpid(), signal.SIGKILL))


def memory() -> None:
    def fail() -> None:
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: of this test")

    before_step(1, fail)


def stall() -> None:
    before_step(1, lambda: time.sleep(3600))


def poison() -> None:
    original = TrainSet.cut_batch

    def cut_batch(self: TrainSet, step: int, *rows: Any) -> Any:
        batch = dict(original(self, step, *rows))
        if NUMBER == 1 and step == BROKEN - 1:
            batch["weights"] = batch["weights"] * np.float32(np.nan)
        return batch

    TrainSet.cut_batch = cut_batch


if __name__ == "__main__":
    for failure in sys.argv.pop(1).split(","):
        globals()[failure]()
    program()
