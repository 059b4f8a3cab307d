"""What a task measures besides its loss: statistics of parts of the data whose leaf-wise sum is that of the whole.

So micro-batches, devices and a short last batch reduce exactly, by one `jax.tree.map(jnp.add, …)`.
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
        """Return its value on the host; None if nothing was seen or it is not a single number."""


class Ratio(NamedTuple):
    """A weighted mean, such as an accuracy: two float32 scalars."""

    sum: Scalar
    weight: Scalar

    @staticmethod
    def zero() -> Ratio:
        """Return the ratio of nothing."""
        return Ratio(np.float32(0), np.float32(0))

    def value(self) -> float | None:
        """Return the mean on the host; None if the weight is 0."""
        return float(self.sum) / float(self.weight) if float(self.weight) else None


def values_of(metrics: Mapping[str, Statistic]) -> dict[str, float]:
    """Return the value of every statistic that has one."""
    found = {name: statistic.value() for name, statistic in metrics.items()}
    return {name: value for name, value in found.items() if value is not None}
