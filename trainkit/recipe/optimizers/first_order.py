"""Gradient descent and what scales or signs it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.optimizers.moments import WithMoments, moment_bytes
from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.schedulable import BETAS
from trainkit.recipe.optimizers.spec import Decay, DecayType, OptimizerSpec, WidthScaling
from trainkit.recipe.spec import Count, Eps, Fraction, Positive, PositiveRatio, Ratio, WeightDecay


class Sgd(WithMoments):
    """Gradient descent, with momentum if asked, as in torch."""

    type: Literal["sgd"]
    momentum: Decay = 0.0
    """The share of the last direction that is kept."""
    nesterov: bool = False
    """Look ahead by one step of momentum (Sutskever et al. 2013)."""
    dampening: Fraction = 0.0
    """The momentum takes 1 - dampening of each gradient, all of the first one."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.sgd:build_sgd"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    scaled_by_width: ClassVar[WidthScaling | None] = "gradient"
    averages: ClassVar[int] = 1

    @model_validator(mode="after")
    def _options_fit(self) -> Sgd:
        if self.nesterov and not (self.momentum and not self.dampening):
            found = f"momentum = {self.momentum:g}, dampening = {self.dampening:g}"
            raise ValueError(f"optimizer.nesterov = true needs a momentum above 0 and no dampening, found {found}")
        if self.dampening and not self.momentum:
            raise ValueError("optimizer.dampening needs optimizer.momentum above 0, found momentum = 0")
        return self

    def state_key_values(self) -> dict[str, Any]:
        values = super().state_key_values() | {"momentum": "above 0" if self.momentum else "0"}
        return {key: value for key, value in values.items() if self.momentum or key != "moments"}

    def state_bytes(self, shape: Shape) -> int:
        return moment_bytes(shape, self.moments) if self.momentum else 0


class NormalizedSgd(WithMoments):
    """Momentum divided by its norm: steps of one length (Cutkosky & Mehta 2020)."""

    type: Literal["normalized-sgd"]
    momentum: Decay = 0.9
    """Decay of the average of the gradients."""
    norm: Literal["global", "layer"] = "global"
    """Over what the norm is taken: all parameters together, or each parameter of each layer."""
    eps: Eps = 1e-8
    """Added to the norm."""

    implementation: ClassVar[str] = "trainkit.optim.sgd:build_normalized_sgd"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    averages: ClassVar[int] = 1
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "norm"})

    @property
    def by_layer(self) -> bool:
        return self.norm == "layer"


class Lars(WithMoments):
    """Momentum whose updates are, in each layer, a fixed share of the parameters (You et al. 2017)."""

    type: Literal["lars"]
    momentum: Decay = 0.9
    """The share of the last direction that is kept."""
    nesterov: bool = False
    """Look ahead by one step of momentum."""
    trust: PositiveRatio = 1e-3
    """The size of an update as a share of the parameters, at a learning rate of 1."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.sgd:build_lars"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum"}
    averages: ClassVar[int] = 1

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Lars:
        if self.nesterov and not self.momentum:
            raise ValueError("optimizer.nesterov = true needs optimizer.momentum above 0, found momentum = 0")
        return self

    @property
    def by_layer(self) -> bool:
        return True


class RmsProp(WithMoments):
    """Gradients divided by the root of their average square (Hinton 2012), as in torch."""

    type: Literal["rmsprop"]
    decay: Decay = 0.99
    """Decay of the average of squares."""
    eps: Eps = 1e-8
    """Added to the root."""
    centered: bool = False
    """Divide by the deviation from the average gradient instead (Graves 2013)."""
    momentum: Decay = 0.0
    """The share of the last direction that is kept."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.adagrad:build_rmsprop"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "momentum", "beta2": "decay"}
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"
    averages: ClassVar[int] = 1
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "centered"})

    @model_validator(mode="after")
    def _a_deviation_is_exact(self) -> RmsProp:
        if self.centered and self.moments != "float32":
            raise ValueError(
                f'optimizer.moments = "{self.moments}" does not go with optimizer.centered = true: rounded, an average'
                ' of squares may be below the square of the average, which has no root; write moments = "float32"'
            )
        return self

    def smaller(self) -> Iterator[dict[str, Any]]:
        return iter(()) if self.centered else super().smaller()

    def state_key_values(self) -> dict[str, Any]:
        return super().state_key_values() | {"momentum": "above 0" if self.momentum else "0"}

    def state_bytes(self, shape: Shape) -> int:
        return (1 + self.centered + (self.momentum > 0)) * moment_bytes(shape, self.moments)


class Adagrad(OptimizerSpec):
    """Gradients divided by the root of the sum of all their squares (Duchi et al. 2011)."""

    type: Literal["adagrad"]
    initial: Ratio = 0.1
    """What the sums begin with."""
    eps: Eps = 1e-7
    """Added to the sum below the root."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.adagrad:build_adagrad"
    unscheduled: ClassVar[Mapping[str, str]] = {
        "momentum": "it has no momentum, as published",
        "beta2": "it sums squares and forgets none",
    }
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"

    def state_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape)


class Adafactor(OptimizerSpec):
    """Adam in sublinear memory: of a matrix, averages of squares of rows and columns only (Shazeer & Stern 2018)."""

    type: Literal["adafactor"]
    least_factored: Count = 128
    """Matrices with a side shorter than this keep all averages."""
    decay_rate: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The decay of the averages at step t is 1 - t^-decay_rate."""
    clip: Positive = 1.0
    """The greatest root mean square of an update of a parameter."""
    relative: bool = True
    """Whether updates are multiplied by the root mean square of the parameter, so that learning rates are relative."""
    eps: Eps = 1e-30
    """Added to squares."""

    implementation: ClassVar[str] = "trainkit.optim.adagrad:build_adafactor"
    unscheduled: ClassVar[Mapping[str, str]] = {
        "momentum": "it keeps no average of gradients, which is why it takes so little memory",
        "beta2": "the decay of its averages has a schedule of its own, 1 - t^-decay_rate",
    }
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "least_factored"})

    def state_bytes(self, shape: Shape) -> int:
        # the layers of a stack are matrices of their own; without a name, a third axis is taken for that of layers
        sides = sorted(shape[-2:])
        if len(shape) < 2 or sides[0] < self.least_factored:
            return 4 * math.prod(shape)
        return 4 * math.prod(shape[:-2]) * sum(shape[-2:])

    @property
    def by_layer(self) -> bool:
        return True


class Lion(WithMoments):
    """The sign of a momentum (Chen et al. 2023, arXiv:2302.06675); it wants a learning rate 3 to 10 times lower than
    Adam, and a weight decay as much higher."""

    type: Literal["lion"]
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """The share of the average in the direction, and the decay of the average."""
    weight_decay: WeightDecay = 1.0

    implementation: ClassVar[str] = "trainkit.optim.sgd:build_lion"
    schedulable: ClassVar[Mapping[str, str]] = BETAS
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"
    averages: ClassVar[int] = 1


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (Sgd, NormalizedSgd, Lars, RmsProp, Adagrad, Adafactor, Lion)
