"""Several processes that train one run, usually one on each host: the number of this process, and shared decisions.

All processes compute the same step. The first one also writes the log, takes commands, and decides everything that
depends on more than the recipe, the data and the state: the time, commands, signals, files that exist. The others
receive its decisions through the coordination service of `jax.distributed`, so no device waits for a decision.

How all of them learn of an error in one of them is in `agreement.py`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainkit.errors import FAILED, TrainkitError
from trainkit.parallel.presence import Presence

T = TypeVar("T")
#: Environment variables of jax: HOST:PORT of the first process, the number of processes, and that of this one.
ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
#: Variables in which `srun` and Open MPI say how many processes they have started.
LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
#: Milliseconds of one wait for another process. Python handles signals between two waits.
_PATIENCE = 2000
#: Seconds that a process waits at its end for the others: the first one may still be exporting.
_SHUTDOWN = 3600
#: The first process forgets a decision after this many others. A process that falls further behind waits forever, and
#: a paused run makes about 15 decisions a second.
_KEPT = 100_000
#: Seconds by which the first process ends after the others.
_LAST = 1.0
#: Where a process leaves the name of its host when it ends with an error.
_LEFT = "trainkit/left/"
#: A process whose number is unknown.
_ANOTHER = "another process of this run"


class ProcessFailed(TrainkitError):
    """One process of the run failed, and the others know it."""


class ProcessEnded(ProcessFailed):
    """Another process of the run has ended, or no longer answers."""


class FirstFailed(SystemExit):
    """The first process failed instead of deciding; the code is its exit code."""


@dataclass
class ProcessGroup:
    """The processes of a run, and how this one exchanges values with the others."""

    client: Any
    number: int
    """The number of this process; 0 is the first."""
    count: int
    decisions: int = 0
    meetings: int = 0
    ends_together: bool = False
    departed: bool = False
    presence: Presence | None = None
    uses: dict[str, int] = field(default_factory=dict)
    """How often each name of `agreement.first_problem` was used."""

    def let_main_thread_end(self) -> None:
        """Let the main thread end this process: it knows that a process has failed, or that the run is over."""
        if self.presence:
            self.presence.let_main_thread_end()

    def decide(self, value: Any, error: BaseException | None = None) -> None:
        """Send the others a decision of the first process, or the exit code of the error that it has instead."""
        code = None if error is None else error.exit_code if isinstance(error, TrainkitError) else FAILED
        if error is not None:
            self.let_main_thread_end()
        self.send(_decision(self.decisions), pickle.dumps((value, code)))
        if self.decisions >= _KEPT:
            self.client.key_value_delete(_decision(self.decisions - _KEPT))
        self.decisions += 1

    def require_presence(self) -> None:
        """Raise ProcessEnded if this process no longer waits for the others."""
        if self.departed:
            raise ProcessEnded("this process has failed, and no longer waits for the others", exit_code=FAILED)

    def send(self, key: str, value: bytes) -> None:
        """Set a value that other processes receive. Raises ProcessEnded if the first one, which keeps it, has ended."""
        try:
            self.client.key_value_set_bytes(key, value)
        except RuntimeError as error:
            raise error_of_end(self.lost) from error

    def receive(self, key: str, *, until: float | None = None) -> bytes:
        """Return a value that another process sets. Raises ProcessEnded if one has ended, and at the moment `until`."""
        while True:
            try:
                return bytes(self.client.blocking_key_value_get_bytes(key, _PATIENCE))
            except RuntimeError as error:
                which = self.which_left() if "DEADLINE_EXCEEDED" in str(error) else self.lost or _ANOTHER
                if not which and until is not None and time.monotonic() > until:
                    which = _ANOTHER
                if which:
                    if "DEADLINE_EXCEEDED" in str(error):  # else jax aborts this process sooner than it can end
                        self.let_main_thread_end()
                    raise error_of_end(which) from error

    @property
    def lost(self) -> str:
        """Return the process whose connection has closed; nothing if there is none."""
        return self.presence.lost if self.presence else ""

    def which_left(self) -> str:
        """Return the process that has ended; nothing if there is none."""
        if self.lost:
            return self.lost
        try:
            gone = [(key.rpartition("/")[2], host) for key, host in self.client.key_value_dir_get(_LEFT)]
        except RuntimeError:  # the first process, which keeps their names, does not answer either
            return _ANOTHER
        return next((f"process {number} on {host}" for number, host in sorted(gone)), "")


def error_of_end(which: str) -> ProcessEnded:
    """Return the error that a process, such as "process 1 on host", has ended; if empty, it is unknown which."""
    return ProcessEnded(
        f"{which or _ANOTHER} has ended",
        where=ADDRESS,
        hint="its output says why; to continue: trainkit resume RUN, in all processes",
        exit_code=FAILED,
    )


_group: ProcessGroup | None = None


def join() -> None:
    """Join the other processes of a run, if the environment says that there are any.

    Call it before jax opens a device.

    Raises:
        TrainkitError: the environment is incomplete, or the others cannot be reached.
    """
    global _group
    if _group is not None or not _is_one_of_several():
        return
    import jax
    from jax._src import distributed  # jax.distributed has no public way to exchange values

    jax.config.update("jax_enable_preemption_service", False)  # the service would handle SIGTERM itself
    try:
        jax.distributed.initialize(
            num_processes=_number(COUNT),
            process_id=_number(NUMBER),
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise TrainkitError(
            f"cannot join the other processes of this run: {error}",
            where=ADDRESS,
            hint=f"set {ADDRESS} to HOST:PORT of process 0, {COUNT} to the number of processes, and {NUMBER} to that of"
            " this one, counted from 0; or start trainkit with srun or mpirun",
        ) from error
    state = distributed.global_state
    number, count = state.process_id, state.num_processes
    presence = Presence(state.client, number=number, address=state.coordinator_address or "")
    _group = ProcessGroup(state.client, number, count, presence=presence)


def group() -> ProcessGroup | None:
    """Return the processes of this run; None if there is only this one."""
    return _group


def count() -> int:
    """Return the number of processes that train together."""
    return _group.count if _group else 1


def number() -> int:
    """Return the number of this process; 0 is the first."""
    return _group.number if _group else 0


def is_first() -> bool:
    """Return whether this process writes the log and decides."""
    return _group is None or _group.number == 0


def from_first(make: Callable[[], T]) -> T:
    """Return what `make` returns in the first process.

    Only main threads may call this, and all processes must make the same calls in the same order.

    Raises:
        Exception: in the first process, as `make` does; in the others, FirstFailed with its exit code.
    """
    if _group is None:
        return make()
    if _group.number:
        _group.require_presence()
        value, code = pickle.loads(_group.receive(_decision(_group.decisions)))
        _group.decisions += 1
        if code is not None:
            _group.let_main_thread_end()
            raise FirstFailed(code)
        return value  # type: ignore[no-any-return]
    try:
        value = make()
    except Exception as error:
        _group.decide(None, error)
        raise
    _group.decide(value)
    return value


def first_goes(make: Callable[[], T]) -> T:
    """Return what `make` returns in this process. The first process calls it before the others do.

    So the others find the files that the first process writes. Raises as `from_first`.
    """
    if is_first():
        made: list[T] = []
        from_first(lambda: made.append(make()))
        return made[0]
    from_first(lambda: None)
    return make()


def depart() -> None:
    """Wait for the others no more: they may be waiting for this process, which failed within a computation."""
    if _group is not None:
        _group.departed = True
        _group.let_main_thread_end()


def send_to_first(message: str) -> None:
    """Send a message, which `messages_from_others` returns in the first process. Raises as `ProcessGroup.send`."""
    assert _group is not None
    try:
        _group.client.key_value_set(f"trainkit/messages/{_group.number}", message, allow_overwrite=True)
    except RuntimeError as error:
        raise error_of_end(_group.lost) from error


def messages_from_others() -> list[str]:
    """Return the last message of each process that has sent one."""
    return [message for _, message in _group.client.key_value_dir_get("trainkit/messages/")] if _group else []


def when_stuck(report: Callable[[str], None]) -> None:
    """Set what is called with a message if this process must end while its main thread waits for one that is gone."""
    if _group is not None and _group.presence:
        _group.presence.on_stuck = report


def end_together() -> None:
    """Note that all processes end without an error, so that each may wait for the others at its end."""
    if _group is not None:
        _group.ends_together = True
        _group.let_main_thread_end()


def leave(code: int, *, seconds: float = 2 * _PATIENCE / 1000) -> None:
    """End this process after an error, once the others leave too, or after these `seconds`; the first one ends last.

    jax would otherwise wait for the other processes, which still train. Does nothing if there are none.
    """
    if _group is not None and not _group.ends_together:
        _group.let_main_thread_end()
        with contextlib.suppress(RuntimeError):  # time for the others to hear of it, and of the first one's decisions
            _group.client.key_value_set(f"{_LEFT}{_group.number}", socket.gethostname(), allow_overwrite=True)
            _group.client.wait_at_barrier("trainkit/leaving", round(1000 * seconds))
        if not _group.number:  # jax aborts whoever is still there when the first one ends
            time.sleep(_LAST)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _is_one_of_several() -> bool:
    if os.environ.get(ADDRESS):
        return os.environ.get(COUNT) != "1"
    return any(os.environ.get(name, "1") not in ("", "1") for name in LAUNCHERS)


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    return int(text) if text else None


def _decision(number: int) -> str:
    return f"trainkit/decision/{number}"
