"""One attempt at a run: one process, one lock, and an end that the log records whatever happens.

`python -m trainkit.run.attempt` is the trainer as a process of its own: see `spawn`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from trainkit.checkpoint import store
from trainkit.errors import DONE, FAILED, INTERRUPTED, STOPPED_EARLY, WRONG_INPUT, TrainkitError
from trainkit.events.alerts import Watch
from trainkit.events.commands import issued_commands
from trainkit.events.log import EventLog, SilentLog
from trainkit.events.schema import Event
from trainkit.events.tail import last_attempt, last_end, last_step
from trainkit.parallel import hosts
from trainkit.parallel.xla import make_deterministic, prepare_gpus
from trainkit.printer import complain
from trainkit.recipe.toml.load import Loaded, locate_error
from trainkit.run.recorded_inputs import mend_log
from trainkit.run.rollback import set_bad_aside
from trainkit.run.start import Start, announce
from trainkit.rundir.directory import RunMoved, disk_errors, hold_lock, recipe_of, restore_recipe
from trainkit.train.signals import Signals, StopBeforeTraining, hold_signals, leave, repeat_ignored

#: The output of the trainer, in the run's directory.
LOG = "trainer.log"


def spawn(
    directory: Path, start: Start, *, environment: Mapping[str, str] | None = None, restarts: int = 0
) -> subprocess.Popen[bytes]:
    """Start `attempt(directory, start)` in a process and session of its own, so that the terminal may be closed.

    Its output goes to the run's `trainer.log`. `environment` is what its environment has beside that of this process.
    With `restarts`, the process is one that starts the trainer, and starts it again if it fails.
    """
    command = _command(directory, start)
    if restarts:
        supervisor = [sys.executable, "-m", "trainkit.run.restarts", str(directory), str(restarts)]
        command = [*supervisor, *command, "then", *_command(directory, Start())]
    with (directory / LOG).open("ab") as output, hold_signals():
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def _command(directory: Path, start: Start) -> list[str]:
    """Return the command that `main` is called by."""
    step = "" if start.step is None else str(start.step)
    profile = ":".join(map(str, start.profile or ()))
    flags = [str(int(start.reset_optimizer)), str(int(start.forget_commands))]
    return [sys.executable, "-m", __name__, str(directory), step, *flags, profile]


def attempt(
    directory: Path, start: Start, *, loaded: Loaded | None = None, echo: Callable[[Event], None] | None = None
) -> int:
    """Train the run in `directory` to its end, or until it is stopped; return the exit code.

    Everything that happens is written to the run's event log, and `echo` is called with each event.

    Args:
        loaded: the run's recipe, if this process has loaded it already.

    Raises:
        TrainkitError: something is wrong with the recipe, the data or the machine; the log says so too.
    """
    signal = Signals()
    try:
        try:
            signal.release_signals()
            with disk_errors(directory), hold_lock(directory) if hosts.is_first() else contextlib.nullcontext():
                loaded = loaded or recipe_of(directory)
                damaged = mend_log(directory) if hosts.is_first() else None
                number = hosts.from_first(lambda: last_attempt(directory) + 1)
                log = (
                    EventLog(directory, attempt=number, echo=echo, watch=Watch().feed)
                    if hosts.is_first()
                    else SilentLog(attempt=number)
                )
                hosts.when_stuck(
                    lambda why: log.write("run_finished", step=log.step, status="failed", exit_code=FAILED, message=why)
                )
                with contextlib.ExitStack() as afterwards:
                    afterwards.callback(log.close)
                    return _run_to_end(
                        directory, loaded, start, damaged=damaged, signal=signal, log=log, afterwards=afterwards
                    )
        finally:
            signal.over = True
    except StopBeforeTraining:  # before the attempt was announced, or once more while it ended
        return signal.exit_code


@contextlib.contextmanager
def _imports_that_stay() -> Iterator[None]:
    """Let the garbage collector ignore what a block imports.

    Imported modules are never garbage, and looking through them takes a tenth of the time of a short run.
    """
    collects, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:  # else it would keep the garbage of an attempt before this one in the process
            gc.freeze()
        if collects:
            gc.enable()


def _run_to_end(
    directory: Path,
    loaded: Loaded,
    start: Start,
    *,
    damaged: str | None,
    signal: Signals,
    log: EventLog,
    afterwards: contextlib.ExitStack,
) -> int:
    if hosts.is_first():
        store.clean(directory)
        set_bad_aside(directory, log)
    end = _End(directory, signal, log)
    start = replace(start, issued=hosts.from_first(lambda: tuple(issued_commands(directory))))
    try:
        _begin(directory, loaded, start, damaged=damaged, log=log)
        with signal.defer(), _imports_that_stay():
            from trainkit.run.setup import train

        loop_end = train(directory, loaded, start, signal=signal, log=log, afterwards=afterwards)
        if not log.is_in_place():
            raise RunMoved(directory)
    except StopBeforeTraining:
        return end.before_training()
    except TrainkitError as error:
        if signal.ends_preparations:
            return end.before_training()
        end.refuse(locate_error(error, loaded), cause=error)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            if not signal.training:
                return end.before_training()
            end.write_stop(INTERRUPTED, "a second Ctrl-C: the steps after the newest checkpoint are lost")
        raise
    except BaseException as error:
        if signal.ends_preparations:  # as when it interrupted an import in C
            return end.before_training()
        end.fail(error, f"{type(error).__name__}: {error}")
    hosts.end_together()
    if loop_end.done:
        return end.write("finished", DONE, loop_end.reason)
    code = signal.exit_code if signal.received else STOPPED_EARLY
    return end.write_stop(code, f"stopped after step {log.step}; the checkpoint is written")


def _begin(directory: Path, loaded: Loaded, start: Start, *, damaged: str | None, log: EventLog) -> None:
    """Write the first events of an attempt, and set XLA up before jax opens a device.

    The steps after an older checkpoint stay in the log until that checkpoint is restored, and so do commands that are
    to be forgotten, as this may be refused.
    """

    def note(message: str) -> None:
        log.write("log", step=log.step, level="info", message=message)

    newest = store.newest(directory)
    resumed_from = hosts.from_first(
        lambda: last_step(directory) if start.step is not None else newest.step if newest else None
    )
    announce(log, loaded, replace(start, forget_commands=False), resumed_from=resumed_from)
    for plugin in loaded.plugins:
        note(f"plugin {plugin}")
    if damaged:
        log.write("alert", step=log.step, kind="log", message=damaged)
    if loaded.recipe.run.deterministic:
        note(f"deterministic: XLA_FLAGS is {make_deterministic()}")
    if loaded.recipe.parallel.platform in ("auto", "gpu"):
        for message in prepare_gpus(processes=hosts.count()):
            note(message)


class _End:
    """Writes to the log how an attempt ends, and returns or raises what it ends with."""

    def __init__(self, directory: Path, signal: Signals, log: EventLog) -> None:
        self._directory, self._signal, self._log = directory, signal, log
        # that attempt has ended, as this process holds the lock; if its end is not in the log, it crashed
        self._status_before = last_end(directory) or ("crashed" if log.attempt > 1 else "failed")

    def write(self, status: str, code: int, message: str) -> int:
        """Write the end; return the exit code."""
        self._log.write("run_finished", step=self._log.step, status=status, exit_code=code, message=message)
        if code != FAILED:  # a failure is reported anyway
            self._log.complete()
        return code

    def write_stop(self, code: int, message: str) -> int:
        """End an attempt that a person or a signal stopped."""
        return self.write("interrupted" if code == INTERRUPTED else "stopped", code, message)

    def before_training(self) -> int:
        """End an attempt that a signal stopped before its first step."""
        with self._signal.defer():
            return self.write_stop(self._signal.exit_code, "stopped before training began")

    def fail(self, error: BaseException, message: str, *, code: int = FAILED, status: str = "failed") -> NoReturn:
        """End an attempt by this error."""
        with contextlib.suppress(OSError):  # a log that cannot be written must not hide the error
            self.write(status, code, message)
        raise error

    def refuse(self, error: TrainkitError, *, cause: TrainkitError) -> NoReturn:
        """End an attempt by an error for people. One that is refused before it trains leaves the run as it was."""
        error.__cause__ = cause
        if error.exit_code != WRONG_INPUT or self._signal.training:
            self.fail(error, str(error), code=error.exit_code)
        if hosts.is_first():
            with contextlib.suppress(OSError):
                restore_recipe(self._directory, attempt=self._log.attempt - 1)
        self.fail(error, str(error), code=WRONG_INPUT, status=self._status_before)


def main(arguments: list[str]) -> int:
    """Run the attempt that `spawn` describes by these arguments; return the exit code."""
    directory, step, reset_optimizer, forget_commands, profile = arguments
    first, _, last = profile.partition(":")
    start = Start(
        step=int(step) if step else None,
        reset_optimizer=reset_optimizer == "1",
        forget_commands=forget_commands == "1",
        profile=(int(first), int(last)) if profile else None,
    )
    try:
        return attempt(Path(directory), start)
    except TrainkitError as error:
        complain(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.unraisablehook = repeat_ignored
    leave(main(sys.argv[1:]))
