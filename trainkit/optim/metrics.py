"""What optimizers report of themselves in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import jax
from jaxtyping import Array, PyTree


@runtime_checkable
class Reporting(Protocol):
    """A state of an optimizer or wrapper, a NamedTuple, that reports numbers about itself."""

    def __iter__(self) -> Iterator[PyTree]: ...

    def metrics(self) -> Mapping[str, Array]:
        """Return scalars by name; the log has them as `optimizer/NAME`."""


def metrics(state: PyTree) -> dict[str, Array]:
    """Return what an optimizer's state, and the states inside it, report; of two with one name, the inner one's."""
    found: dict[str, Array] = {}
    for node in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Reporting)):
        if isinstance(node, Reporting):
            found |= node.metrics()
            found |= metrics(tuple(node))
    return found
