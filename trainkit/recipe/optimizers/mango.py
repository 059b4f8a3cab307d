"""Mango: momentum that is normalized by what a parameter is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainkit.recipe.optimizers.moments import WithMoments, moment_bytes
from trainkit.recipe.optimizers.parameters import Shape, is_stacked
from trainkit.recipe.optimizers.spec import Decay, OptimizerSpec
from trainkit.recipe.spec import Eps, NotNegative, Positive, Spec, Width

VectorNorm = Literal["l2", "sign", "none"]
MatrixNorm = Literal["newton-schulz", "rows", "columns", "l2", "sign", "none"]
WeightNorm = Literal["none", "l2", "rows", "columns", "operator"]
Role = Literal["matrices", "embeddings", "head", "attention", "attention_biases", "scales", "biases"]


class Normalizations(Spec):
    """How Mango normalizes directions, for each role of a parameter.

    `newton-schulz` orthogonalises a matrix and multiplies it by sqrt(max(1, outputs / inputs)), as Muon does; `rows`
    and `columns` give each row or column of an array norm 1 (a row of an embedding is that of a token), `l2` the whole
    matrix or vector; `sign` keeps signs alone.
    """

    matrices: MatrixNorm = "newton-schulz"
    """Hidden matrices."""
    embeddings: MatrixNorm = "rows"
    """Embeddings of tokens and positions; also the output matrix, if it is the same."""
    head: MatrixNorm = "newton-schulz"
    """The output matrix."""
    attention: MatrixNorm = "newton-schulz"
    """The matrices of queries, keys and values."""
    attention_biases: VectorNorm = "l2"
    """Their biases."""
    scales: VectorNorm = "sign"
    """Vectors that multiply, such as those of norms."""
    biases: VectorNorm = "l2"
    """Vectors that are added."""


class WeightNorms(Spec):
    """By which norm of its weights Mango multiplies a direction, for each role of a parameter, as LAMB does.

    `operator` is the greatest singular value of a matrix.
    """

    matrices: WeightNorm = "none"
    """Hidden matrices."""
    embeddings: WeightNorm = "none"
    """Embeddings of tokens and positions."""
    head: WeightNorm = "none"
    """The output matrix."""
    attention: WeightNorm = "none"
    """The matrices of queries, keys and values, each as a whole."""
    attention_biases: Literal["none", "l2"] = "none"
    """Their biases."""
    scales: Literal["none", "l2"] = "none"
    """Vectors that multiply, such as those of norms."""
    biases: Literal["none", "l2"] = "none"
    """Vectors that are added."""
    power: Positive = 1.0
    """The power of the norm that multiplies directions."""
    least: NotNegative = 1.0
    """The least that the power is taken for."""
    greatest: Positive | None = None
    """The greatest that the power is taken for. If absent, there is no limit."""


def kind_for(kinds: Normalizations | WeightNorms, role: Role) -> str:
    """Return what a table says about the parameters of a role."""
    by_role: dict[Role, str] = {
        "matrices": kinds.matrices,
        "embeddings": kinds.embeddings,
        "head": kinds.head,
        "attention": kinds.attention,
        "attention_biases": kinds.attention_biases,
        "scales": kinds.scales,
        "biases": kinds.biases,
    }
    return by_role[role]


class Mango(WithMoments):
    """Momentum normalized by what a parameter is for (Mango of ZQZCalin's fork of Trainit, with the options of its
    second version). The wrapper `offset` adds its offsets; groups give parameters their own rates and options."""

    type: Literal["mango"]
    momentum: Decay = 0.95
    """The share of the last momentum that is kept."""
    nesterov: bool = True
    """Look ahead by one step of momentum."""
    preconditioner: Literal["none", "laprop", "adam"] = "none"
    """`laprop` divides gradients by the root of a decaying sum of their squares before they enter the momentum; `adam`
    divides the momentum by the root of an average of squares."""
    preconditioner_decay: Decay = 0.95
    """Decay of the squares."""
    eps: Eps = 1e-8
    """Added to roots and norms."""
    iterations: Annotated[int, Field(ge=1, le=20)] = 6
    """Iterations of Newton-Schulz."""
    head_size: Width | None = None
    """Outputs of a head of attention, by which the matrices and biases of queries, keys and values are divided into
    parts that are normalized by themselves. If absent, they are normalized as wholes."""
    normalize: Normalizations = Normalizations()
    """How directions are normalized, for each role of a parameter."""
    weights: WeightNorms = WeightNorms()
    """By which norm of the weights directions are multiplied, for each role of a parameter."""

    implementation: ClassVar[str] = "trainkit.optim.mango"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    averages: ClassVar[int] = 1
    depends_on_shapes: ClassVar[bool] = True
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "preconditioner"})

    @property
    def by_layer(self) -> bool:
        return True

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        return MangoOfRole(**dict(self), role=role_of(name, shape))

    def check_parameter(self, name: str, shape: Shape) -> None:
        if self.head_size is not None and role_of(name, shape).startswith("attention") and shape[-1] % self.head_size:
            raise ValueError(
                f"optimizer.head_size = {self.head_size} does not divide the {shape[-1]} outputs of {name}:"
                " it is model.hidden / model.heads unless the model has another width of heads"
            )

    def state_bytes(self, shape: Shape) -> int:
        return (1 + (self.preconditioner != "none")) * moment_bytes(shape, self.moments)


class MangoOfRole(Mango):
    """Mango for the parameters of one role; recipes choose it by no name."""

    role: Role

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        return self


def role_of(name: str, shape: Shape) -> Role:
    """Return the role of a parameter in Mango."""
    parts = name.split(".")
    of_attention = "attention" in parts and not {"qkv", "query", "key", "value"}.isdisjoint(parts)
    if len(shape) - is_stacked(name) < 2:
        if not parts[-1].endswith("bias"):
            return "scales"
        return "attention_biases" if of_attention else "biases"
    if any("embedding" in part for part in parts):
        return "embeddings"
    if name == "output":
        return "head"
    return "attention" if of_attention else "matrices"


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (Mango,)
