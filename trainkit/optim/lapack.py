"""Factorizations of stacks of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array


def one_by_one(function: Callable[..., Any], *stacks: Array) -> Any:
    """Return `function` of the matrices of `stacks`, (…, m, n), one after another; its arrays get their leading axes.

    On a CPU, XLA divides a LAPACK call of several matrices among the threads that run the program, and the call waits
    for them. As many such calls as there are threads wait for ever: with two threads, a step of SOAP stood still. A
    call of one matrix does not wait.
    """
    lead = stacks[0].shape[:-2]
    flat = [stack.reshape(math.prod(lead), *stack.shape[-2:]) for stack in stacks]
    found = jax.lax.map(lambda matrices: function(*matrices), flat)
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), found)
