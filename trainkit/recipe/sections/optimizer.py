"""[optimizer]: the update rules, how much state each keeps, and which parameters are treated differently.

The mathematics of a rule is in the module that its spec names as `implementation`; nothing outside that module and its
spec knows a rule by name.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from trainkit.recipe.spec import NotNegative, Positive, Spec, union_of

#: Dimensions of one parameter.
Shape: TypeAlias = tuple[int, ...]
Moments = Literal["float32", "bfloat16", "int8"]
Decay = Annotated[float, Field(ge=0, lt=1)]

#: Moments of fewer numbers are not compressed: norms and biases take little memory, and rounding them does harm.
SMALLEST_COMPRESSED = 4096


class Group(Spec):
    """Options for the parameters whose path matches; a later group overrides an earlier one."""

    match: str
    """A glob over parameter paths, such as `*.bias` or `blocks.*`. A glob that matches no parameter is an error."""
    optimizer: Optimizer | None = None
    """Another update rule for these parameters, such as `{ type = "adamw", learning_rate = 3e-4 }`; it has no groups of
    its own."""
    weight_decay: NotNegative | None = None
    """Overrides the optimizer's weight decay; this is how norms, biases or embeddings are decayed."""
    learning_rate_factor: NotNegative = 1.0
    """Multiplies the learning rate; 0 freezes these parameters."""

    @model_validator(mode="after")
    def _has_no_groups_inside(self) -> Group:
        if self.optimizer is not None and self.optimizer.groups:
            raise ValueError("the optimizer of a group cannot have groups: list them all in [[optimizer.groups]]")
        return self


class OptimizerSpec(Spec):
    """What every optimizer has, and what the rest of trainkit asks of it."""

    type: str
    learning_rate: Positive
    """The peak; the schedule scales it at each step."""
    weight_decay: NotNegative = 0.0
    """Each step subtracts learning rate x weight decay x parameter (decoupled: Loshchilov & Hutter 2019). Norms, biases
    and embeddings are not decayed unless a group gives them a weight decay."""
    groups: tuple[Group, ...] = ()
    """Parameters with their own options: one `[[optimizer.groups]]` each."""

    implementation: ClassVar[str]
    """The module whose `build(spec)` returns the gradient transformation."""
    state_keys: ClassVar[frozenset[str]] = frozenset({"type"})
    """Keys whose change makes a saved optimizer state useless."""

    @abstractmethod
    def state_bytes(self, shape: Shape) -> int:
        """Return the bytes of state kept for one parameter of this shape."""

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        """Return the rule that updates a parameter where no group chooses one."""
        return self

    def owner(self, name: str, shape: Shape) -> OptimizerSpec:
        """Return the rule that updates the parameter `name`: that of the last group that chooses one, or its own."""
        chosen = [group.optimizer for group in self.groups_of(name) if group.optimizer is not None]
        return chosen[-1].rule_of(name, shape) if chosen else self.rule_of(name, shape)

    def groups_of(self, name: str) -> list[Group]:
        """Return the groups that match a parameter, in their order."""
        return [group for group in self.groups if fnmatchcase(name, group.match)]

    def decay_of(self, name: str, shape: Shape) -> float:
        """Return the weight decay of a parameter."""
        decay = 0.0 if is_exempt_from_decay(name) else self.owner(name, shape).weight_decay
        for group in self.groups_of(name):
            decay = decay if group.weight_decay is None else group.weight_decay
        return decay

    def rate_factor_of(self, name: str, shape: Shape) -> float:
        """Return the learning rate of a parameter as a multiple of `learning_rate`; the last matching group decides."""
        factors = [group.learning_rate_factor for group in self.groups_of(name)]
        own = self.owner(name, shape).learning_rate / self.learning_rate
        return (factors[-1] if factors else 1.0) * own

    def total_state_bytes(self, leaves: Mapping[str, Shape]) -> int:
        """Return the bytes of state of parameters with these names and shapes."""
        return sum(self.owner(name, shape).state_bytes(shape) for name, shape in leaves.items())

    def smaller(self) -> Iterator[dict[str, Any]]:
        """Yield changes of keys that make the state smaller, the mildest first."""
        return iter(())

    def check_groups(self, names: Iterable[str]) -> None:
        """Check the groups against the names of the trained parameters.

        Raises ValueError where a group matches none, or two groups choose different optimizers for one parameter.
        """
        names = list(names)
        for number, group in enumerate(self.groups):
            if not any(fnmatchcase(name, group.match) for name in names):
                raise ValueError(
                    f"optimizer.groups.{number}: match = {group.match!r} matches no parameter;"
                    f" the parameters are {', '.join(names)}"
                )
        for name in names:
            rules = [group for group in self.groups_of(name) if group.optimizer is not None]
            if any(group.optimizer != rules[0].optimizer for group in rules):
                matches = " and ".join(repr(group.match) for group in rules)
                raise ValueError(
                    f"optimizer.groups: {matches} choose different optimizers for {name};"
                    " make the globs disjoint or give both the same optimizer"
                )

    def state_key_values(self) -> dict[str, Any]:
        """Return the values that determine the structure of the state, by dotted key within [optimizer]."""
        values = {key: getattr(self, key) for key in sorted(self.state_keys)}
        for number, group in enumerate(self.groups):
            if group.optimizer is not None:
                values[f"groups.{number}.match"] = group.match
                inner = group.optimizer.state_key_values()
                values |= {f"groups.{number}.optimizer.{key}": value for key, value in inner.items()}
        return values


class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the averages of the gradients and of their squares."""
    eps: Positive = 1e-8
    """Added to the root of the second average."""
    weight_decay: NotNegative = 0.1
    moments: Moments = "float32"
    """How both averages are stored between steps; they are computed in float32. int8 is 8 bit on a logarithmic scale
    in blocks of 32 (after Dettmers et al. 2022). Averages of fewer than 4096 numbers stay float32."""

    implementation: ClassVar[str] = "trainkit.optim.adamw"
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments"})

    def state_bytes(self, shape: Shape) -> int:
        return 2 * moment_bytes(shape, self.moments)

    def smaller(self) -> Iterator[dict[str, Any]]:
        kinds = ("float32", "bfloat16", "int8")
        for kind in kinds[kinds.index(self.moments) + 1 :]:
            yield {"moments": kind}


class Muon(OptimizerSpec):
    """Muon (Jordan et al. 2024): momentum whose matrices are orthogonalised by Newton-Schulz iterations.

    It updates the hidden matrices. Embeddings, the output matrix, routers, norms and biases are updated by AdamW, whose
    options are in `[optimizer.adamw]`.
    """

    type: Literal["muon"]
    momentum: Decay = 0.95
    """Decay of the average of the gradients."""
    nesterov: bool = True
    """Look ahead by one step of momentum."""
    iterations: Annotated[int, Field(ge=1, le=20)] = 5
    """Newton-Schulz iterations at each step."""
    scale: Literal["width", "rms"] = "width"
    """How updates depend on a matrix's shape. `width` multiplies them by sqrt(max(1, outputs / inputs)), as published;
    `rms` by 0.2 sqrt(max(inputs, outputs)), which makes them as large as AdamW's (Liu et al. 2025), so that a
    learning rate tuned for AdamW fits."""
    weight_decay: NotNegative = 0.1
    adamw: AdamW
    """The rule for everything that is not a hidden matrix, with its own `learning_rate`."""

    implementation: ClassVar[str] = "trainkit.optim.muon"

    @model_validator(mode="after")
    def _adamw_has_no_groups(self) -> Muon:
        if self.adamw.groups:
            raise ValueError("optimizer.adamw has no groups of its own: list them all in [[optimizer.groups]]")
        return self

    def rule_of(self, name: str, shape: Shape) -> OptimizerSpec:
        return self if is_hidden_matrix(name, shape) else self.adamw

    def state_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape)

    def state_key_values(self) -> dict[str, Any]:
        inner = self.adamw.state_key_values()
        return super().state_key_values() | {f"adamw.{key}": value for key, value in inner.items()}

    def smaller(self) -> Iterator[dict[str, Any]]:
        for change in self.adamw.smaller():
            yield {f"adamw.{key}": value for key, value in change.items()}


def moment_bytes(shape: Shape, moments: Moments) -> int:
    """Return the bytes of one average of a parameter; int8 has a byte of scale for each block of 32 numbers."""
    size = math.prod(shape)
    if moments == "float32" or size < SMALLEST_COMPRESSED:
        return 4 * size
    return 2 * size if moments == "bfloat16" else size + math.ceil(size / 32)


def is_exempt_from_decay(name: str) -> bool:
    """Whether a parameter is a norm, a bias, an embedding or a magnitude (DoRA), which are not decayed by default."""
    *parents, last = name.split(".")
    return (
        last.endswith("bias")
        or "embedding" in last
        or any("norm" in parent or parent == "magnitude" for parent in parents)
    )


def is_hidden_matrix(name: str, shape: Shape) -> bool:
    """Whether a parameter is a matrix between hidden layers: its last two axes are inputs and outputs.

    `blocks.*` have a leading axis of layers. Embeddings, the output matrix, routers and norms are no hidden matrices.
    """
    own_axes = len(shape) - name.startswith("blocks.")
    parts = name.split(".")
    outside = any("embedding" in part or "norm" in part or part == "router" for part in parts)
    return own_axes >= 2 and name not in ("output", "output_bias", "classifier.output.weight") and not outside


#: Every optimizer of the recipe language.
OPTIMIZERS = (AdamW, Muon)

if TYPE_CHECKING:
    Optimizer: TypeAlias = OptimizerSpec
else:
    Optimizer = union_of("adamw", *OPTIMIZERS)
