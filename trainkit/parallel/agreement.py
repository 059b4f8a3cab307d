"""Agreement between the processes of one run: what one of them knows, such as an error, and all must act on alike.

Before every computation of all devices, each process says whether it can take part (`agree`). So an error in one of
them, such as a disk that fails, is known to all while none of them waits for a device, and they end alike.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from trainkit.errors import FAILED, TrainkitError
from trainkit.parallel import hosts
from trainkit.parallel.hosts import FirstFailed, ProcessEnded, ProcessFailed, ProcessGroup, error_of_end

T = TypeVar("T")
#: Seconds that a process waits after an error for the others, which may be waiting for it within a computation.
_MEETING = 600.0


class _Reply(NamedTuple):
    """What one process says in a meeting of all."""

    purpose: str
    value: Any
    failed: tuple[str, str, str, int] | None
    """The problem, place, hint and exit code of its error; None if it has none."""


def agree(purpose: str, error: BaseException | None = None, *, ready: bool = True) -> bool:
    """Return whether all processes are `ready`, once all of them have called this for the same `purpose`.

    Only main threads may call this, and all processes must make the same calls in the same order.

    Raises:
        ProcessFailed: one of the processes has an `error`, or another purpose. A single process raises its error
            itself.
    """
    group = hosts.group()
    if group is None:
        if error is not None:
            raise error
        return ready
    return all(_meet(group, purpose, ready, error))


def make_together(purpose: str, make: Callable[[], T]) -> T:
    """Return what `make` returns in this process, once it has returned in all of them. Raises as `agree`."""
    try:
        value = make()
    except Exception as error:
        agree(purpose, error)
        raise
    agree(purpose)
    return value


def gather(purpose: str, value: T) -> list[T]:
    """Return the values of all processes by their number, once all of them have called this. Raises as `agree`."""
    group = hosts.group()
    return [value] if group is None else _meet(group, purpose, value)


def share(error: BaseException) -> BaseException:
    """Return the error with which all processes end when this one has failed: that of the process that failed first.

    Each process calls this once after an error, wherever it was. Afterwards all of them make the same calls again,
    unless one did not come: then this one waits for the others no more.
    """
    group = hosts.group()
    if group is None:
        return error
    group.let_main_thread_end()
    if isinstance(error, ProcessFailed):
        return error
    if not group.number:
        group.decide(None, error)  # the others may be waiting for this decision
    try:
        own = None if isinstance(error, FirstFailed) else error
        _meet(group, "error", None, own, until=time.monotonic() + _MEETING)
    except ProcessEnded:
        hosts.depart()
        return error
    except ProcessFailed as failed:
        return failed
    return error


def first_problem(name: str, problem: str | None) -> str | None:
    """Wait until all processes call this, and return the first problem that one of them reports; None if none does.

    Any thread may call this. All processes must use each name equally often; a run that goes back uses names again.
    """
    group = hosts.group()
    if group is None:
        return problem
    use = group.uses[name] = group.uses.get(name, 0) + 1
    group.send(f"trainkit/{name}/{use}/{group.number}", pickle.dumps(problem))
    problems = [pickle.loads(group.receive(f"trainkit/{name}/{use}/{number}")) for number in range(group.count)]
    return next((f"process {number}: {each}" for number, each in enumerate(problems) if each is not None), None)


def ended_process(seconds: float) -> ProcessEnded | None:
    """Return an error that names the process that has ended, once it is known, or None after these `seconds`."""
    group, until = hosts.group(), time.monotonic() + seconds
    while group is not None and time.monotonic() < until:
        if which := group.which_left():
            return error_of_end(which)
        time.sleep(0.05)
    return None


def _meet(
    group: ProcessGroup, purpose: str, value: T, error: BaseException | None = None, *, until: float | None = None
) -> list[T]:
    """Return the values of all processes by their number. Raises ProcessFailed as `agree`, and ProcessEnded."""
    own = _Reply(purpose, value, None if error is None else _as_failed(group, error))
    replies = _exchange(group, own, until=until)
    for reply in replies:
        if reply.failed is not None:
            problem, where, hint, code = reply.failed
            raise ProcessFailed(problem, where=where, hint=hint, exit_code=code) from error
    if len({reply.purpose for reply in replies}) > 1:
        each = ", ".join(f"{number} ({reply.purpose})" for number, reply in enumerate(replies))
        raise ProcessFailed(
            f"the processes of this run are at different places: {each}",
            hint="this is a bug in trainkit; to continue: trainkit resume RUN, in all processes",
            exit_code=FAILED,
        )
    return [reply.value for reply in replies]


def _as_failed(group: ProcessGroup, error: BaseException) -> tuple[str, str, str, int]:
    """Return the problem, place, hint and exit code of an error in this process."""
    place = f"process {group.number} on {socket.gethostname()}"
    if isinstance(error, TrainkitError):
        return f"{place}: {error.problem}", error.where, error.hint, error.exit_code
    return f"{place}: {type(error).__name__}: {error}", "", "", FAILED


def _exchange(group: ProcessGroup, own: _Reply, *, until: float | None) -> list[_Reply]:
    group.require_presence()
    meeting = f"trainkit/meeting/{group.meetings}"
    group.meetings += 1
    if group.number:
        group.send(f"{meeting}/{group.number}", pickle.dumps(own))
        # after an error a process has received fewer decisions than the others
        replies, group.decisions = pickle.loads(group.receive(f"{meeting}/all", until=until))
        return replies  # type: ignore[no-any-return]
    others = [group.receive(f"{meeting}/{number}", until=until) for number in range(1, group.count)]
    replies = [own, *map(pickle.loads, others)]
    group.send(f"{meeting}/all", pickle.dumps((replies, group.decisions)))
    if group.meetings > 1:  # all have left the meeting before
        group.client.key_value_delete(f"trainkit/meeting/{group.meetings - 2}")
    return replies
