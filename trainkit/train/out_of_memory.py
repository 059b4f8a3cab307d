"""What to do when a device has no memory left."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JaxRuntimeError

from trainkit.errors import FAILED, TrainkitError
from trainkit.events.log import EventLog
from trainkit.parallel import agreement
from trainkit.plan import Plan
from trainkit.plan.proposal import no_memory
from trainkit.recipe import Recipe
from trainkit.train.state import State

#: Seconds after a failed computation in which it becomes known that another process has ended.
_PATIENCE = 5.0


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device, or on a CPU the host, had no memory for a buffer or for the compiler's trials."""
    return isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def can_recover_from(error: BaseException) -> bool:
    """Return whether memory ran out and this process may do less instead: one of several hosts may not act alone."""
    return is_out_of_memory(error) and jax.process_count() == 1


def as_one_of_several(error: JaxRuntimeError) -> Exception:
    """Return the error with which one of several processes ends after a computation failed.

    It says what to do if this process ran out of memory or another process has ended; otherwise it is `error` itself.
    """
    if is_out_of_memory(error):
        which = f"process {jax.process_index()} on {socket.gethostname()}"
        return TrainkitError(
            f"{which} has no memory left, and one of several processes cannot do less alone",
            hint="trainkit resume RUN in all processes, with a smaller --set train.micro_batch_size=N or with --set"
            ' train.remat="blocks"',
            exit_code=FAILED,
        )
    return agreement.ended_process(_PATIENCE) or error


def is_alive(state: State) -> bool:
    """Return whether every array is readable: none was donated to a step that failed, and none is its result."""
    leaves = jax.tree.leaves(state)
    if any(leaf.is_deleted() for leaf in leaves):
        return False
    try:
        jax.block_until_ready(leaves)
    except JaxRuntimeError:
        return False
    return True


@contextmanager
def skip_without_memory(what: str, *, step: int, log: EventLog) -> Iterator[None]:
    """Skip the rest of a block that training does not need, and write an alert, if memory runs out in it."""
    try:
        yield
    except JaxRuntimeError as error:
        if not can_recover_from(error):
            raise
        message = f"no memory for {what} after step {step}: skipped"
        log.write("alert", step=step, kind="out of memory", message=message)


@contextmanager
def explain_out_of_memory(what: str, plan: Plan, recipe: Recipe) -> Iterator[None]:
    """Raise TrainkitError, with a change that would fit, if memory runs out in a block that makes `what`."""
    try:
        yield
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory(what, plan, recipe) from error
