"""Several processes that train one run, usually one on each host: the number of this process, and shared decisions.

All processes compute the same step. The first one also writes the log, takes commands, and decides everything that
depends on more than the recipe, the data and the state: the time, commands, signals, files that exist. The others
receive its decisions through the coordination service of `jax.distributed`, so no device waits for a decision.

Before every computation of all devices, each process says whether it can take part (`agree`). So an error in one of
them, such as a disk that fails, is known to all while none of them waits for a device, and they end alike.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from trainkit.errors import FAILED, TrainkitError

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
#: Where a process leaves the name of its host when it ends with an error.
_LEFT = "trainkit/left/"
#: Seconds that a process waits after an error for the others, which may be waiting for it within a computation.
_MEETING = 600.0


class ProcessFailed(TrainkitError):
    """One process of the run failed, and the others know it."""


class ProcessEnded(ProcessFailed):
    """Another process of the run has ended, or no longer answers."""


class FirstFailed(SystemExit):
    """The first process failed instead of deciding; the code is its exit code."""


@dataclass
class _Group:
    """The processes of a run."""

    client: Any
    number: int
    count: int
    decisions: int = 0
    meetings: int = 0
    ends_together: bool = False
    departed: bool = False


_group: _Group | None = None


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
    _group = _Group(state.client, state.process_id, state.num_processes)


def count() -> int:
    """Return the number of processes that train together."""
    return _group.count if _group else 1


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
        _require_presence(_group)
        value, code = pickle.loads(_receive(_group, _decision(_group.decisions)))
        _group.decisions += 1
        if code is not None:
            raise FirstFailed(code)
        return value  # type: ignore[no-any-return]
    try:
        value = make()
    except Exception as error:
        _decide(_group, None, error)
        raise
    _decide(_group, value)
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


def first_problem(name: str, problem: str | None) -> str | None:
    """Wait until all processes call this, and return the first problem that one of them reports; None if none does.

    Any thread may call this. Each name may be used once.
    """
    if _group is None:
        return problem
    _group.client.key_value_set_bytes(f"trainkit/{name}/{_group.number}", pickle.dumps(problem))
    problems = [pickle.loads(_receive(_group, f"trainkit/{name}/{number}")) for number in range(_group.count)]
    return next((f"process {number}: {each}" for number, each in enumerate(problems) if each is not None), None)


def agree(error: BaseException | None = None, *, ready: bool = True) -> bool:
    """Return whether all processes are `ready`, once all of them have called this.

    Only main threads may call this, and all processes must make the same calls in the same order.

    Raises:
        ProcessFailed: one of the processes has an `error`. A single process raises its error itself.
    """
    if _group is None:
        if error is not None:
            raise error
        return ready
    return _agreed(_group, error, ready=ready, until=None)


def make_together(make: Callable[[], T]) -> T:
    """Return what `make` returns in this process, once it has returned in all of them. Raises as `agree`."""
    try:
        value = make()
    except Exception as error:
        agree(error)
        raise
    agree()
    return value


def gather(value: T) -> list[T]:
    """Return the values of all processes by their number, once all of them have called this, as `agree`."""
    return [value] if _group is None else _gathered(_group, value, until=None)


def share(error: BaseException) -> BaseException:
    """Return the error with which all processes end when this one has failed: that of the process that failed first.

    Each process calls this once after an error, wherever it was. Afterwards all of them make the same calls again,
    unless one did not come: then this one waits for the others no more.
    """
    if _group is None or isinstance(error, ProcessFailed):
        return error
    if not _group.number:
        _decide(_group, None, error)  # the others may be waiting for this decision
    try:
        own = None if isinstance(error, FirstFailed) else error
        _agreed(_group, own, ready=True, until=time.monotonic() + _MEETING)
    except ProcessEnded:
        depart()
        return error
    except ProcessFailed as failed:
        return failed
    return error


def depart() -> None:
    """Wait for the others no more: they may be waiting for this process, which failed within a computation."""
    if _group is not None:
        _group.departed = True


def send_to_first(message: str) -> None:
    """Send a message, which `messages_from_others` returns in the first process."""
    assert _group is not None
    _group.client.key_value_set(f"trainkit/messages/{_group.number}", message, allow_overwrite=True)


def messages_from_others() -> list[str]:
    """Return the last message of each process that has sent one."""
    return [message for _, message in _group.client.key_value_dir_get("trainkit/messages/")] if _group else []


def end_together() -> None:
    """Note that all processes end without an error, so that each may wait for the others at its end."""
    if _group is not None:
        _group.ends_together = True


def leave(code: int) -> None:
    """End this process at once after an error: jax would otherwise wait for the other processes, which still train."""
    if _group is not None and not _group.ends_together:
        with contextlib.suppress(RuntimeError):  # time for the others to hear of it, and of the first one's decisions
            _group.client.key_value_set(f"{_LEFT}{_group.number}", socket.gethostname(), allow_overwrite=True)
            _group.client.wait_at_barrier("trainkit/leaving", 2 * _PATIENCE)
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


def _decide(group: _Group, value: Any, error: BaseException | None = None) -> None:
    """Send the others a decision of the first process, or the exit code of the error that it has instead."""
    code = None if error is None else error.exit_code if isinstance(error, TrainkitError) else FAILED
    group.client.key_value_set_bytes(_decision(group.decisions), pickle.dumps((value, code)))
    if group.decisions >= _KEPT:
        group.client.key_value_delete(_decision(group.decisions - _KEPT))
    group.decisions += 1


def _agreed(group: _Group, error: BaseException | None, *, ready: bool, until: float | None) -> bool:
    replies = _gathered(group, (ready, None if error is None else _as_failed(group, error)), until=until)
    for _, failed in replies:
        if failed is not None:
            problem, where, hint, code = failed
            raise ProcessFailed(problem, where=where, hint=hint, exit_code=code) from error
    return all(each for each, _ in replies)


def _as_failed(group: _Group, error: BaseException) -> tuple[str, str, str, int]:
    """Return the problem, place, hint and exit code of an error in this process."""
    place = f"process {group.number} on {socket.gethostname()}"
    if isinstance(error, TrainkitError):
        return f"{place}: {error.problem}", error.where, error.hint, error.exit_code
    return f"{place}: {type(error).__name__}: {error}", "", "", FAILED


def _require_presence(group: _Group) -> None:
    if group.departed:
        raise ProcessEnded("this process has failed, and no longer waits for the others", exit_code=FAILED)


def _gathered(group: _Group, value: T, *, until: float | None) -> list[T]:
    _require_presence(group)
    meeting = f"trainkit/meeting/{group.meetings}"
    group.meetings += 1
    if group.number:
        group.client.key_value_set_bytes(f"{meeting}/{group.number}", pickle.dumps(value))
        # after an error a process has received fewer decisions than the others
        values, group.decisions = pickle.loads(_receive(group, f"{meeting}/all", until=until))
        return values  # type: ignore[no-any-return]
    others = [_receive(group, f"{meeting}/{number}", until=until) for number in range(1, group.count)]
    values = [value, *map(pickle.loads, others)]
    group.client.key_value_set_bytes(f"{meeting}/all", pickle.dumps((values, group.decisions)))
    if group.meetings > 1:  # all have left the meeting before
        group.client.key_value_delete(f"trainkit/meeting/{group.meetings - 2}")
    return values


def _receive(group: _Group, key: str, *, until: float | None = None) -> bytes:
    """Return a value that another process sets. Raises ProcessEnded if one has ended, and at the moment `until`."""
    while True:
        try:
            return bytes(group.client.blocking_key_value_get_bytes(key, _PATIENCE))
        except RuntimeError as error:
            left = "DEADLINE_EXCEEDED" not in str(error)
            which = "" if left else _which_left(group)
            if left or which or (until is not None and time.monotonic() > until):
                raise ProcessEnded(
                    f"{which or 'another process of this run'} has ended",
                    where=ADDRESS,
                    hint="its output says why; to continue: trainkit resume RUN, in all processes",
                    exit_code=FAILED,
                ) from error


def _which_left(group: _Group) -> str:
    """Return the process that has ended with an error; nothing if there is none."""
    gone = [(key.rpartition("/")[2], host) for key, host in group.client.key_value_dir_get(_LEFT)]
    return next((f"process {number} on {host}" for number, host in sorted(gone)), "")
