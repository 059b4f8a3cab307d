"""Whether a step fits: what the compiled step of the run itself says of its memory, and a search for one that does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax.stages import Compiled

from trainkit.events.log import EventLog
from trainkit.plan import Choice, Memory, Plan
from trainkit.train.state import State

T = TypeVar("T")
#: Batches on the device beside the one that the step reads: two wait in the feed and one is on its way to it.
WAITING = 3
#: What XLA's runtime on a CPU holds that its compiler does not tell of: compiled code, packed operands, threads. It was
#: 57 to 97 MB for the shapes of scripts/bench/fit.py.
CPU_RUNTIME = 64 << 20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device (on CPU, the host) had no room for a buffer, or the compiler none to try its kernels in."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def is_alive(state: State) -> bool:
    """Return whether every array can still be read: none was given to a step that failed, and none came from it."""
    leaves = jax.tree.leaves(state)
    if any(leaf.is_deleted() for leaf in leaves):
        return False
    try:
        jax.block_until_ready(leaves)
    except jax.errors.JaxRuntimeError:
        return False
    return True


@contextmanager
def skip_without_memory(what: str, *, step: int, log: EventLog) -> Iterator[None]:
    """For blocks without which training goes on as well: where there is no memory for this one, an alert says so.

    One of several hosts cannot skip what the others do.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error) or jax.process_count() > 1:
            raise
        message = f"no memory for {what} after step {step}: skipped"
        log.write("alert", step=step, kind="out of memory", message=message)


def device_bytes(tree: Any) -> int:
    """Bytes on one device of arrays or of their shapes with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory_of(compiled: Compiled, state: State, batch: Any, plan: Plan) -> Memory | None:
    """What a device holds while `compiled`, a step with donated state, runs; None where its compiler does not tell.

    Args:
        state, batch: what the step takes, as arrays or as shapes with shardings.
        plan: says of what the temporary memory is estimated to consist.
    """
    told = compiled.memory_analysis()
    if told is None:
        return None
    parameters, frozen, optimizer = (device_bytes(part) for part in (state.params, state.frozen, state.optimizer))
    one_batch = device_bytes(batch)
    arguments = told.argument_size_in_bytes
    results = max(0, told.output_size_in_bytes - told.alias_size_in_bytes)
    return Memory(
        parameters=parameters,
        frozen=frozen,
        optimizer=optimizer,
        snapshot=max(0, arguments - one_batch - frozen),
        rest=max(0, arguments - parameters - frozen - optimizer) + results,
        batches=WAITING * one_batch,
        program=told.generated_code_size_in_bytes + (CPU_RUNTIME if plan.devices.platform == "cpu" else 0),
        temporary=_divided(told.temp_size_in_bytes, plan),
    )


def first_that_fits(
    choices: Sequence[Choice],
    *,
    first: Choice,
    attempt: Callable[[Choice], T],
    memory: Callable[[T], Memory | None],
    estimate: Callable[[Choice], int],
    limit: int | None,
) -> T:
    """What `attempt` makes of the first choice that fits, beginning with `first`; of the smallest tried if none does.

    A choice costs a compilation, so those are passed over that by `estimate` (bytes of a step's temporary memory), put
    right by what was measured last, do not fit.

    Raises:
        jax.errors.JaxRuntimeError: the compiler itself found no memory, for the smallest either.
    """
    best: tuple[int, T] | None = None
    left, choice = list(choices), first
    while True:
        left = [c for c in left if c != choice]
        needed: Memory | None = None
        try:
            tried = attempt(choice)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error) or not (left or best):
                raise
            likely = [c for c in left if 2 * estimate(c) <= estimate(choice)]
        else:
            needed = memory(tried)
            if needed is None or limit is None or needed.peak <= limit:
                return tried
            best = min(best or (needed.peak, tried), (needed.peak, tried), key=lambda found: found[0])
            temporary = sum(needed.temporary.values())
            scale = temporary / max(1, estimate(choice))
            likely = [c for c in left if needed.peak - temporary + scale * estimate(c) <= limit]
        if not left:
            assert best is not None
            return best[1]
        # where none is likely to fit, the smallest decides
        choice = likely[0] if likely else min(left, key=estimate)
        left = left[left.index(choice) :] if likely else [choice]


def enlarged(
    found: T,
    better: Sequence[Choice],
    *,
    choice: Choice,
    attempt: Callable[[Choice], T],
    memory: Callable[[T], Memory | None],
    estimate: Callable[[Choice], int],
    limit: int | None,
) -> T:
    """`found`, which `attempt` made of `choice` and which fits, or what it makes of one of the `better` choices.

    Those are tried that fit by `estimate`, put right by what was measured last: where the estimate was too high, there
    may be room for more at once.
    """
    last, left = found, list(better)
    while (needed := memory(last)) is not None and limit is not None:
        temporary = sum(needed.temporary.values())
        scale = temporary / max(1, estimate(choice))
        likely = [c for c in left if needed.peak - temporary + scale * estimate(c) <= limit]
        if not likely:
            break
        choice = likely[0]
        left = left[left.index(choice) + 1 :]
        try:
            last = attempt(choice)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        if (measured := memory(last)) is not None and measured.peak <= limit:
            return last
    return found


def _divided(total: int, plan: Plan) -> dict[str, int]:
    """An estimate, category by category, of what is not there twice; the remainder is workspace."""
    shares, left = {}, total
    for name in ("gradients", "activations", *(["logits"] if "logits" in plan.bytes else [])):
        shares[name] = min(left, plan.bytes[name])
        left -= shares[name]
    return {**shares, "workspace": left}
