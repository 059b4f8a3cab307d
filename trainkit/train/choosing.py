"""Which micro-batch and remat to compile: the best choice whose step fits in memory, by few compilations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jax.errors import JaxRuntimeError

from trainkit.plan import Choice, Memory
from trainkit.train.out_of_memory import is_out_of_memory

T = TypeVar("T")


def first_that_fits(
    choices: Sequence[Choice],
    *,
    first: Choice,
    attempt: Callable[[Choice], T],
    memory: Callable[[T], Memory | None],
    estimate: Callable[[Choice], int],
    limit: int | None,
) -> T:
    """Return what `attempt` makes of the first choice that fits, starting with `first`; of the smallest if none fits.

    Each attempt is a compilation. Choices are skipped that do not fit by `estimate` (bytes of a step's temporary
    memory), corrected by the last measurement.

    Raises:
        JaxRuntimeError: the compiler had no memory, not even for the smallest choice.
    """
    best: tuple[int, T] | None = None
    left, choice = list(choices), first
    while True:
        left = [c for c in left if c != choice]
        try:
            result = attempt(choice)
        except JaxRuntimeError as error:
            if not is_out_of_memory(error) or not (left or best):
                raise
            likely = [c for c in left if 2 * estimate(c) <= estimate(choice)]
        else:
            needed = memory(result)
            if needed is None or limit is None or needed.peak <= limit:
                return result
            best = min(best or (needed.peak, result), (needed.peak, result), key=lambda measured: measured[0])
            likely = _likely(left, needed, choice, estimate, limit)
        if not left:
            assert best is not None
            return best[1]
        # if none is likely to fit, the smallest decides
        choice = likely[0] if likely else min(left, key=estimate)
        left = left[left.index(choice) :] if likely else [choice]


def choose_better(
    result: T,
    better: Sequence[Choice],
    *,
    choice: Choice,
    attempt: Callable[[Choice], T],
    memory: Callable[[T], Memory | None],
    estimate: Callable[[Choice], int],
    limit: int | None,
) -> T:
    """Return what `attempt` makes of the first of the `better` choices that fits, or `result`, made of `choice`.

    Choices are tried that fit by `estimate`, corrected by the last measurement: the estimate may have been too high.
    """
    last, left = result, list(better)
    while (needed := memory(last)) is not None and limit is not None:
        likely = _likely(left, needed, choice, estimate, limit)
        if not likely:
            break
        choice = likely[0]
        left = left[left.index(choice) + 1 :]
        try:
            last = attempt(choice)
        except JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break
        if (measured := memory(last)) is not None and measured.peak <= limit:
            return last
    return result


def _likely(
    choices: Sequence[Choice], needed: Memory, choice: Choice, estimate: Callable[[Choice], int], limit: int
) -> list[Choice]:
    """Return the choices that fit by the estimate, corrected by what `choice` needed."""
    temporary = sum(needed.temporary.values())
    scale = temporary / max(1, estimate(choice))
    return [c for c in choices if needed.peak - temporary + scale * estimate(c) <= limit]
