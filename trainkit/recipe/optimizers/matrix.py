"""Optimizers that treat a matrix as a matrix, not as numbers of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.optimizers.adam import AdamW
from trainkit.recipe.optimizers.moments import WithMoments, moment_bytes
from trainkit.recipe.optimizers.parameters import Shape, is_hidden_matrix
from trainkit.recipe.optimizers.spec import Decay, OptimizerSpec
from trainkit.recipe.spec import Count, Eps, WeightDecay

Coefficients = Literal["newton-schulz", "polar-express"]
Compute = Literal["float32", "bfloat16"]


class MatrixOptimizer(OptimizerSpec):
    """An optimizer of hidden matrices.

    Embeddings, the output matrix, routers, norms and biases are updated by AdamW, whose options are in
    `[optimizer.adamw]`.
    """

    adamw: AdamW
    """The rule for everything that is not a hidden matrix, with its own `learning_rate`."""

    @model_validator(mode="after")
    def _adamw_has_nothing_inside(self) -> MatrixOptimizer:
        for key in ("groups", "wrappers"):
            if getattr(self.adamw, key):
                raise ValueError(f"optimizer.adamw has no {key} of its own: list them all in [[optimizer.{key}]]")
        return self

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        return self if is_hidden_matrix(name, shape) else self.adamw

    def parts(self) -> dict[str, OptimizerSpec]:
        return {"": self, "adamw": self.adamw}

    def state_key_values(self) -> dict[str, Any]:
        inner = self.adamw.state_key_values()
        return super().state_key_values() | {f"adamw.{key}": value for key, value in inner.items()}

    def smaller(self) -> Iterator[dict[str, Any]]:
        yield from super().smaller()
        for change in self.adamw.smaller():
            yield {f"adamw.{key}": value for key, value in change.items()}


class Muon(MatrixOptimizer, WithMoments):
    """Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised by iterations of polynomials."""

    type: Literal["muon"]
    momentum: Decay = 0.95
    """Decay of the average of the gradients."""
    nesterov: bool = True
    """Look ahead by one step of momentum."""
    debias: bool = True
    """Correct both parts of the look-ahead for the average's start at zero, as optax does. The published rule and
    torch.optim.Muon do not."""
    laprop: bool = False
    """Divide gradients by the root of a decaying sum of their squares before they enter the momentum (LaProp, Ziyin et
    al. 2020, arXiv:2002.04839)."""
    laprop_decay: Decay = 0.95
    """Decay of that sum, if `laprop`."""
    coefficients: Coefficients = "newton-schulz"
    """The polynomials of the iterations. `newton-schulz` takes the same one each time (Jordan et al. 2024) and leaves
    singular values between about 0.7 and 1.2; `polar-express` takes the best one for each (Amsel et al. 2025,
    arXiv:2505.16932), and comes nearer to 1 with every iteration."""
    iterations: Annotated[int, Field(ge=1, le=20)] = 5
    """Iterations at each step."""
    compute: Compute = "float32"
    """Type of the matrices between iterations; products are summed in float32. `bfloat16`, as published and in
    torch.optim.Muon, is faster on processors with instructions for it, and changes directions by 2 to 4 percent."""
    scale: Literal["width", "rms", "nuclear"] = "width"
    """How updates depend on a matrix's shape. `width` multiplies them by sqrt(max(1, outputs / inputs)), as published;
    `rms` by 0.2 sqrt(max(inputs, outputs)), which makes them as large as AdamW's (Liu et al. 2025), so that a
    learning rate tuned for AdamW fits; `nuclear` by the nuclear norm of what is orthogonalised, so that updates become
    smaller with the gradients: PolarGrad, published with `nesterov = false` (Lau et al. 2025, arXiv:2505.21799)."""
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.muon"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    averages: ClassVar[int] = 1
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "laprop"})

    def state_bytes(self, shape: Shape) -> int:
        return (1 + self.laprop) * moment_bytes(shape, self.moments)


class Soap(MatrixOptimizer):
    """Adam in the eigenbasis of Shampoo's preconditioners (Vyas et al. 2024, arXiv:2409.11321).

    The first step only looks at the gradient and changes nothing. All state is float32: where a gradient has no part in
    a direction of the basis, a rounded average would have one, divided by next to nothing.
    """

    type: Literal["soap"]
    betas: tuple[Decay, Decay] = (0.95, 0.95)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-8
    """Added to the root of the second average."""
    preconditioner_decay: Decay | None = None
    """Decay of the averages of gradient x gradient^T. If absent, the second of `betas`."""
    every: Count = 10
    """Steps from one update of the eigenbasis to the next."""
    longest_side: Count = 10_000
    """Sides longer than this are not preconditioned."""
    weight_decay: WeightDecay = 0.01

    implementation: ClassVar[str] = "trainkit.optim.soap"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "betas.0"}
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "longest_side"})

    def state_bytes(self, shape: Shape) -> int:
        sides = [side for side in shape[-2:] if side <= self.longest_side]
        return 8 * math.prod(shape) + 8 * math.prod(shape[:-2]) * sum(side**2 for side in sides)


class Shampoo(MatrixOptimizer, WithMoments):
    """Gradients preconditioned on both sides by inverse fourth roots (Gupta et al. 2018), in blocks, with steps as
    large as those of another rule (Anil et al. 2021, arXiv:2002.09018)."""

    type: Literal["shampoo"]
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the average of the directions, and of the averages of gradient x gradient^T and of squares."""
    eps: Eps = 1e-6
    """Added to the preconditioners' diagonals before the root, as a share of their norm."""
    block: Annotated[int, Field(ge=2, le=1 << 20)] = 1024
    """The greatest side of a preconditioner: longer sides of a matrix are divided into equal blocks."""
    every: Count = 10
    """Steps from one computation of the roots to the next."""
    graft: Literal["adam", "sgd", "none"] = "adam"
    """Each matrix's step is as long as that of Adam without momentum, that of gradient descent, or Shampoo's own."""
    weight_decay: WeightDecay = 0.01

    implementation: ClassVar[str] = "trainkit.optim.shampoo"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "betas.0"}
    averages: ClassVar[int] = 2
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "block", "graft"})

    def state_bytes(self, shape: Shape) -> int:
        rows, columns = (blocks_of(side, self.block) for side in shape[-2:])
        both = rows[1] ** 2 + columns[1] ** 2
        kept = (1 + (self.graft == "adam")) * moment_bytes(shape, self.moments)
        return kept + 8 * math.prod(shape[:-2]) * rows[0] * columns[0] * both


def blocks_of(side: int, longest: int) -> tuple[int, int]:
    """Return the number of equal blocks that a side of a matrix is divided into, and their length: the fewest that are
    at most `longest`. The last one is filled with zeros."""
    count = -(-side // longest)
    return count, -(-side // count)


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (Muon, Soap, Shampoo)
