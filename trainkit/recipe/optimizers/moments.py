"""Optimizers whose state is averages of gradients: how these are stored, and in how many bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import OptimizerSpec

Moments = Literal["float32", "bfloat16", "int8"]
#: Moments of fewer numbers are not compressed: norms and biases take little memory, and rounding them does harm.
SMALLEST_COMPRESSED = 4096


class WithMoments(OptimizerSpec):
    """An optimizer whose averages may be stored in fewer bits than they are computed in."""

    moments: Moments = "float32"
    """How averages are stored between steps; they are computed in float32. int8 is 8 bit on a logarithmic scale
    in blocks of 32 (after Dettmers et al. 2022). Averages of fewer than 4096 numbers stay float32."""

    averages: ClassVar[int]
    """How many averages there are for each parameter, of its shape."""
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments"})

    def state_bytes(self, shape: Shape) -> int:
        return self.averages * moment_bytes(shape, self.moments)

    def smaller(self) -> Iterator[dict[str, Any]]:
        kinds = ("float32", "bfloat16", "int8")
        for kind in kinds[kinds.index(self.moments) + 1 :]:
            yield {"moments": kind}


def moment_bytes(shape: Shape, moments: Moments) -> int:
    """Return the bytes of one average of a parameter; int8 has a byte of scale for each block of 32 numbers."""
    size = math.prod(shape)
    if moments == "float32" or size < SMALLEST_COMPRESSED:
        return 4 * size
    return 2 * size if moments == "bfloat16" else size + math.ceil(size / 32)
