"""Start a run's trainer again when it has failed, and give up where it fails in the same way each time.

`python -m trainkit.run.restarts DIRECTORY RESTARTS COMMAND… then COMMAND…` does so as a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from trainkit.checkpoint import store
from trainkit.errors import FAILED
from trainkit.events.tail import last_attempt, last_step, of_kinds
from trainkit.printer import complain
from trainkit.rundir.directory import BLACK_BOXES, as_typed
from trainkit.train.signals import ENDING, hold_signals

#: Seconds before the first restart; each one after it waits twice as long while no checkpoint is added, up to the most.
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
#: Between the two commands in the arguments of this module.
THEN = "then"


class Failure(NamedTuple):
    """How an attempt ended: after which step, why, and with which newest checkpoint."""

    step: int
    reason: str
    checkpoint: int | None


def supervise(
    directory: Path,
    command: Sequence[str],
    *,
    restarts: int,
    again: Sequence[str] | None = None,
    say: Callable[[str], None] = complain,
) -> int:
    """Run a trainer, and start it again after a failure, at most `restarts` times; return the last exit code.

    A trainer that was stopped, or whose recipe is wrong, is not started again. Nor is one that failed twice at the same
    step for the same reason without a new checkpoint: it would fail again. SIGTERM, SIGINT and SIGHUP are passed on.

    Args:
        command: starts the trainer.
        again: starts it after a failure; by default `command`.
    """
    child = _Child()
    failed: Failure | None = None
    wait = FIRST_WAIT
    for number in range(restarts + 1):
        attempt = last_attempt(directory)
        code = child.run(command if number == 0 else again or command)
        if child.is_told_to_end or (code >= 0 and code != FAILED):
            return code if code >= 0 else FAILED
        before, failed = failed, _failure(directory, code, attempt)
        if failed == before:
            say(f"not restarted: it failed twice after step {failed.step} for the same reason: {failed.reason}")
            if (directory / BLACK_BOXES).exists():
                say(f"to see the step that broke again: trainkit inspect {as_typed(directory)} --blackbox")
            return FAILED
        if number == restarts:
            say(f"not restarted: it was restarted {restarts} times")
            return FAILED
        wait = FIRST_WAIT if before is None or before.checkpoint != failed.checkpoint else min(2 * wait, LONGEST_WAIT)
        say(f"restart {number + 1} of {restarts} in {wait:g} s: it failed after step {failed.step}: {failed.reason}")
        if child.told.wait(wait):
            return FAILED
    raise AssertionError("the loop returns")


class _Child:
    """Runs one trainer at a time in a process group of its own, so that a Ctrl-C reaches it once, through this."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self._number = signal.SIGTERM
        self._process: subprocess.Popen[bytes] | None = None
        for number in ENDING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # what `hold_signals` has held back comes now

    @property
    def is_told_to_end(self) -> bool:
        """Return whether a signal has asked the run to end."""
        return self.told.is_set()

    def run(self, command: Sequence[str]) -> int:
        """Run a trainer to its end; return its exit code, or minus the signal that ended it."""
        with hold_signals():  # also in the child, until it handles signals
            self._process = subprocess.Popen(command, process_group=0)
        if self.is_told_to_end:  # in the moment before
            self._process.send_signal(self._number)
        return self._process.wait()

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self.told.set()
        if self._process is not None:
            self._process.send_signal(number)


def _failure(directory: Path, code: int, attempt: int) -> Failure:
    """Return how the attempt after number `attempt` failed, by its exit code and the log."""
    ends = deque(of_kinds(directory, "run_finished"), maxlen=1)
    newest = store.newest(directory)
    if code < 0:
        reason = f"ended by {signal.Signals(-code).name}"
    elif ends and ends[0]["attempt"] > attempt:
        reason = str(ends[0]["message"]).partition("\n")[0]
    else:
        reason = f"exit code {code}"
    return Failure(last_step(directory), reason, newest.step if newest else None)


def main(arguments: list[str]) -> int:
    """Supervise the trainer that the arguments describe; return the exit code."""
    directory, restarts, *commands = arguments
    split = commands.index(THEN)
    return supervise(Path(directory), commands[:split], restarts=int(restarts), again=commands[split + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
