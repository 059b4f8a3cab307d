"""One attempt at a run: one process, one lock, and an end that the log records whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from trainkit.checkpoint import store
from trainkit.errors import DONE, FAILED, INTERRUPTED, STOPPED_EARLY, WRONG_INPUT, TrainkitError
from trainkit.events.alerts import Watch
from trainkit.events.commands import issued_commands
from trainkit.events.log import EventLog, last_attempt, last_end
from trainkit.events.schema import Event
from trainkit.parallel.xla import make_deterministic
from trainkit.recipe.toml.load import Loaded, locate_error
from trainkit.run.start import Start, announce
from trainkit.rundir.directory import disk_errors, hold_lock, recipe_of, restore_recipe
from trainkit.train.signals import Signals, StopBeforeTraining


def attempt(
    directory: Path, start: Start, *, loaded: Loaded | None = None, echo: Callable[[Event], None] | None = None
) -> int:
    """Train the run in `directory` to its end, or to where it is stopped; return the exit code.

    Everything that happens is written to the run's event log, and `echo` is called with each event.

    Args:
        loaded: the run's recipe, where this process has loaded it already.

    Raises:
        TrainkitError: something is wrong with the recipe, the data or the machine; the log says so too.
    """
    signal = Signals()
    with disk_errors(directory), hold_lock(directory):
        loaded = loaded or recipe_of(directory)
        log = EventLog(directory, attempt=last_attempt(directory) + 1, echo=echo, watch=Watch().feed)
        with contextlib.ExitStack() as afterwards:
            afterwards.callback(log.close)
            return _to_the_end(directory, loaded, start, signal=signal, log=log, afterwards=afterwards)


def _to_the_end(
    directory: Path,
    loaded: Loaded,
    start: Start,
    *,
    signal: Signals,
    log: EventLog,
    afterwards: contextlib.ExitStack,
) -> int:
    def end(status: str, code: int, message: str) -> int:
        log.write("run_finished", step=log.step, status=status, exit_code=code, message=message)
        return code

    def fail(error: BaseException, code: int, message: str) -> NoReturn:
        # a log that cannot be written must not hide the error
        with contextlib.suppress(OSError):
            end("failed", code, message)
        raise error

    def refuse(error: TrainkitError) -> NoReturn:
        """Leave the run as it was before this attempt, which trained nothing: its recipe, and that it is finished."""
        with contextlib.suppress(OSError):
            restore_recipe(directory, attempt=log.attempt - 1)
            end("finished" if was_finished else "failed", WRONG_INPUT, str(error))
        raise error

    store.clean(directory)
    was_finished = last_end(directory) == "finished"
    newest = store.newest(directory)
    start = replace(start, issued=tuple(issued_commands(directory)))
    resumed_from = start.step if start.step is not None else newest.step if newest else None
    announce(log, loaded, start, resumed_from=resumed_from)
    for plugin in loaded.plugins:
        log.write("log", step=log.step, level="info", message=f"plugin {plugin}")
    try:
        if loaded.recipe.run.deterministic:  # before jax opens a device
            log.write("log", step=log.step, level="info", message=f"deterministic: XLA_FLAGS is {make_deterministic()}")
        from trainkit.run.setup import train

        loop_end = train(directory, loaded, start, signal=signal, log=log, afterwards=afterwards)
    except StopBeforeTraining:
        return end(_status(signal.exit_code), signal.exit_code, "stopped before training began")
    except TrainkitError as unplaced:
        placed = locate_error(unplaced, loaded)
        placed.__cause__ = unplaced
        if placed.exit_code == WRONG_INPUT and not signal.training:
            refuse(placed)
        fail(placed, placed.exit_code, str(placed))
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            end(_status(INTERRUPTED), INTERRUPTED, "a second Ctrl-C: the steps after the newest checkpoint are lost")
        raise
    except BaseException as error:
        fail(error, FAILED, f"{type(error).__name__}: {error}")
    if loop_end.done:
        return end("finished", DONE, loop_end.reason)
    code = signal.exit_code if signal.received else STOPPED_EARLY
    return end(_status(code), code, f"stopped after step {log.step}; the checkpoint is written")


def _status(code: int) -> str:
    return "interrupted" if code == INTERRUPTED else "stopped"
