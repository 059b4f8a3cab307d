"""What a task measures beside its loss: statistics of parts of the data whose leaf-wise sum is that of the whole.

So micro-batches, devices and a last batch that is short reduce exactly, by one `jax.tree.map(jnp.add, …)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from jaxtyping import Array

Scalar: TypeAlias = Array | np.float32


class Statistic(Protocol):
    """A pytree of arrays in which 0 means that nothing was seen."""

    def value(self) -> float | None:
        """Return the number that it comes to, on the host; None where nothing was seen, or where it is no number."""


class Ratio(NamedTuple):
    """A weighted mean, such as an accuracy: two float32 scalars."""

    sum: Scalar
    weight: Scalar

    @staticmethod
    def zero() -> Ratio:
        return Ratio(np.float32(0), np.float32(0))

    def value(self) -> float | None:
        return float(self.sum) / float(self.weight) if float(self.weight) else None


def values_of(metrics: Mapping[str, Statistic]) -> dict[str, float]:
    """Return the value of every statistic that has one."""
    found = {name: statistic.value() for name, statistic in metrics.items()}
    return {name: value for name, value in found.items() if value is not None}
