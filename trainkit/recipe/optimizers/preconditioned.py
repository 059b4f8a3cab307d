"""Optimizers of matrices whose preconditioner is fitted from step to step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainkit.recipe.optimizers.matrix import MatrixOptimizer
from trainkit.recipe.optimizers.moments import WithMoments, moment_bytes
from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import Decay
from trainkit.recipe.spec import Count, Index, NotNegative, PositiveRatio, Ratio, WeightDecay

Diagonal = Literal["none", "longest", "both"]


class Psgd(MatrixOptimizer, WithMoments):
    """PSGD with Kronecker factors, known as Kron (Li 2018, arXiv:1809.10232; Pooladzandi & Li 2024, arXiv:2402.04553):
    momentum whitened by a factor of each side of a matrix, which random probes fit."""

    type: Literal["psgd"]
    momentum: Decay = 0.9
    """Decay of the average of the gradients, which is what is whitened; 0 has none."""
    factor_rate: PositiveRatio = 0.1
    """The learning rate of the factors, relative to their norm."""
    every_step_until: Index = 250
    """The first steps of a run, all of which update the factors. After them, updates become rarer and rarer."""
    probability_decay: Ratio = 1e-3
    """After those steps the probability is exp(-probability_decay x steps since)."""
    least_probability: Annotated[float, Field(gt=0, le=1)] = 0.03
    """The probability that stays."""
    longest_side: Count = 8192
    """Sides longer than this have a diagonal for a factor, which takes little memory."""
    diagonal: Diagonal = "none"
    """Further sides that have a diagonal for a factor: the longer side of each matrix (of a square one the second), or
    both."""
    limit: NotNegative = 1.5
    """Numbers of a direction beyond this grow as a logarithm only; 0 leaves all as they are."""
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.psgd"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    averages: ClassVar[int] = 1
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "longest_side", "diagonal"})

    def state_key_values(self) -> dict[str, Any]:
        values = super().state_key_values() | {"momentum": "above 0" if self.momentum else "0"}
        return {key: value for key, value in values.items() if self.momentum or key != "moments"}

    def state_bytes(self, shape: Shape) -> int:
        kept = moment_bytes(shape, self.moments) if self.momentum else 0
        diagonals = diagonal_sides(shape, self.longest_side, self.diagonal)
        numbers = sum(side if short else side**2 for side, short in zip(shape[-2:], diagonals, strict=True))
        return kept + 4 * math.prod(shape[:-2]) * numbers


def diagonal_sides(shape: Shape, longest: int, diagonal: Diagonal) -> tuple[bool, bool]:
    """Return whether the factor of each side of a matrix is a diagonal."""
    m, n = shape[-2:]
    return (
        m > longest or diagonal == "both" or (diagonal == "longest" and m > n),
        n > longest or diagonal == "both" or (diagonal == "longest" and n >= m),
    )


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (Psgd,)
