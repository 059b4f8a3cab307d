"""Several processes that train one run, usually one on each host: the number of this process, and shared decisions.

All processes compute the same step. The first one also writes the log, takes commands, and decides everything that
depends on more than the recipe, the data and the state: the time, commands, signals, files that exist. The others
receive its decisions through the coordination service of `jax.distributed`, so no device waits for a decision.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class _Group:
    """The processes of a run."""

    client: Any
    number: int
    count: int
    decisions: itertools.count[int] = field(default_factory=itertools.count)
    ends_together: bool = False


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
        TrainkitError: in the first process, as `make` does; in the others, SystemExit with its exit code.
    """
    if _group is None:
        return make()
    number = next(_group.decisions)
    key = f"trainkit/decision/{number}"
    if _group.number:
        value, code = pickle.loads(_received(_group, key))
        if code is not None:
            raise SystemExit(code)
        return value  # type: ignore[no-any-return]
    try:
        value = make()
    except TrainkitError as error:
        _group.client.key_value_set_bytes(key, pickle.dumps((None, error.exit_code)))
        raise
    _group.client.key_value_set_bytes(key, pickle.dumps((value, None)))
    if number >= _KEPT:
        _group.client.key_value_delete(f"trainkit/decision/{number - _KEPT}")
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
    problems = [pickle.loads(_received(_group, f"trainkit/{name}/{number}")) for number in range(_group.count)]
    return next((f"process {number}: {each}" for number, each in enumerate(problems) if each is not None), None)


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
        with contextlib.suppress(RuntimeError):  # time for the others to receive the decisions of the first one
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


def _received(group: _Group, key: str) -> bytes:
    while True:
        try:
            return bytes(group.client.blocking_key_value_get_bytes(key, _PATIENCE))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise TrainkitError(
                    "another process of this run has ended",
                    where=ADDRESS,
                    hint="its output says why; to continue: trainkit resume RUN, in all processes",
                    exit_code=FAILED,
                ) from error
