"""Adam and what is derived from it: an average of gradients, divided by a root of the average of their squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.optimizers.moments import WithMoments, moment_bytes
from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.schedulable import BETAS
from trainkit.recipe.optimizers.spec import Decay, DecayType, WidthScaling
from trainkit.recipe.spec import Count, Eps, Index, Positive, PositiveRatio, Ratio, WeightDecay


class AdamLike(WithMoments):
    """What Adam and most rules derived from it have."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-8
    """Added to the root of the second average."""

    schedulable: ClassVar[Mapping[str, str]] = BETAS
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"
    averages: ClassVar[int] = 2


class AdamW(AdamLike):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.adamw"


class Adam(AdamLike):
    """Adam (Kingma & Ba 2015) with every part of it a switch, for the study of what each of them does.

    With neither `momentum` nor `preconditioner` it is gradient descent.
    """

    type: Literal["adam"]
    momentum: bool = True
    """Whether the direction is the average of the gradients rather than the gradient."""
    preconditioner: bool = True
    """Whether the direction is divided by the root of the average of squares."""
    debias: tuple[bool, bool] = (True, True)
    """Whether each of the two averages is divided by 1 - beta^step, because it began at zero."""
    nesterov: bool = False
    """Look ahead by one step of momentum (Dozat 2016)."""
    amsgrad: bool = False
    """Divide by the greatest average of squares so far (Reddi et al. 2018)."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.adam:build_adam"
    state_keys: ClassVar[frozenset[str]] = frozenset({"type", "moments", "momentum", "preconditioner", "amsgrad"})

    @model_validator(mode="after")
    def _switches_fit(self) -> Adam:
        if self.nesterov and not self.momentum:
            raise ValueError("optimizer.nesterov = true needs optimizer.momentum = true, by which it looks ahead")
        if self.amsgrad and not self.preconditioner:
            raise ValueError("optimizer.amsgrad = true needs optimizer.preconditioner = true: it changes the divisor")
        return self

    def schedulable_key(self, name: str) -> str | None:
        is_on = {"momentum": self.momentum, "beta2": self.preconditioner}
        return super().schedulable_key(name) if is_on.get(name, True) else None

    def state_bytes(self, shape: Shape) -> int:
        return (self.momentum + self.preconditioner + self.amsgrad) * moment_bytes(shape, self.moments)


class NAdam(AdamLike):
    """Adam with Nesterov's momentum, whose decay rises over the steps (Dozat 2016), as in torch."""

    type: Literal["nadam"]
    momentum_decay: Ratio = 4e-3
    """How fast the decay of the momentum rises: at step t it is beta1 (1 - 0.96^(t x momentum_decay) / 2)."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.adam:build_nadam"


class NAdamW(AdamLike):
    """AdamW that looks ahead by one step of momentum (Dozat 2016), as in optax."""

    type: Literal["nadamw"]
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.adam:build_nadamw"


class Adamax(AdamLike):
    """Adam with the greatest recent gradient in place of the root mean square (Kingma & Ba 2015, algorithm 2)."""

    type: Literal["adamax"]
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the average of the gradients, and of the greatest gradient."""
    eps: Eps = 1e-8
    """The least that the greatest gradient is taken for."""
    decay_type: DecayType = "coupled"

    implementation: ClassVar[str] = "trainkit.optim.adam:build_adamax"


class Adan(WithMoments):
    """Adaptive Nesterov momentum from differences of gradients (Xie et al. 2022, arXiv:2208.06677)."""

    type: Literal["adan"]
    betas: tuple[Decay, Decay, Decay] = (0.98, 0.92, 0.99)
    """Decay of the averages of the gradients, of their differences, and of the squares."""
    eps: Eps = 1e-8
    """Added to the root of the third average."""

    implementation: ClassVar[str] = "trainkit.optim.adam:build_adan"
    schedulable: ClassVar[Mapping[str, str]] = {"momentum": "betas.0", "beta2": "betas.2"}
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"
    averages: ClassVar[int] = 4

    def state_bytes(self, shape: Shape) -> int:
        # the last gradient is kept as it is: the difference of two roundings would be noise
        return 3 * moment_bytes(shape, self.moments) + moment_bytes(shape, "float32")


class AdEMAMix(WithMoments):
    """AdamW with a second, much slower average of the gradients (Pagliardini et al. 2024, arXiv:2409.03137)."""

    type: Literal["ademamix"]
    betas: tuple[Decay, Decay, Decay] = (0.9, 0.999, 0.9999)
    """Decay of the fast average, of the average of squares, and of the slow average."""
    alpha: Ratio = 5.0
    """The weight of the slow average beside the fast one."""
    ramp: Index = 0
    """Steps in which `alpha` rises from 0 and the slow decay from that of the fast average, as the paper advises for
    the start of training; 0 has both from the beginning."""
    eps: Eps = 1e-8
    """Added to the root of the average of squares."""
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.adam:build_ademamix"
    schedulable: ClassVar[Mapping[str, str]] = BETAS
    scaled_by_width: ClassVar[WidthScaling | None] = "entrywise"
    averages: ClassVar[int] = 3

    @model_validator(mode="after")
    def _a_decay_can_rise(self) -> AdEMAMix:
        fast, _, slow = self.betas
        if self.ramp and not 0 < fast <= slow:
            raise ValueError(
                f"optimizer.ramp = {self.ramp} lets the slow decay rise from betas.0 = {fast:g} to betas.2 = {slow:g}:"
                " the first must be above 0, and not above the other"
            )
        return self


class Adopt(AdamLike):
    """Adam that converges with any second decay: each gradient is divided before it is averaged, by the squares of
    those before it (Taniguchi et al. 2024, arXiv:2411.02853)."""

    type: Literal["adopt"]
    betas: tuple[Decay, Decay] = (0.9, 0.9999)
    """Decay of the average of divided gradients, and of the average of squares."""
    eps: Eps = 1e-6
    """The least that the root of the average of squares is taken for."""
    clip: bool = True
    """Whether divided gradients are clipped to step^(1/4), which the authors added later against bad first steps."""

    implementation: ClassVar[str] = "trainkit.optim.adam:build_adopt"


class Lamb(WithMoments):
    """Adam whose updates are, in each layer, as large as the parameters (You et al. 2020), for large batches."""

    type: Literal["lamb"]
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-6
    """Added to the root of the second average."""
    weight_decay: WeightDecay = 0.01

    implementation: ClassVar[str] = "trainkit.optim.adam:build_lamb"
    schedulable: ClassVar[Mapping[str, str]] = BETAS
    finish: ClassVar[str | None] = "trainkit.optim.norms:trust_ratio"
    averages: ClassVar[int] = 2
    trust: ClassVar[float] = 1.0

    @property
    def by_layer(self) -> bool:
        return True


class Sophia(WithMoments):
    """Momentum divided by an estimate of the Hessian's diagonal, clipped (Liu et al. 2023, arXiv:2305.14342).

    The diagonal is Hutchinson's estimate, from the difference of two gradients along a random direction; every `every`
    steps it costs two further passes over the batch, in float32.
    """

    type: Literal["sophia"]
    betas: tuple[Decay, Decay] = (0.965, 0.99)
    """Decay of the averages of the gradients and of the diagonals."""
    gamma: PositiveRatio = 0.01
    """The diagonal is multiplied by it: the lower, the more of the update is clipped."""
    clip: Positive = 1.0
    """The greatest magnitude of a direction."""
    eps: Eps = 1e-8
    """The least that a diagonal is taken for."""
    every: Count = 10
    """Steps from one estimate of the diagonal to the next."""
    weight_decay: WeightDecay = 0.1

    implementation: ClassVar[str] = "trainkit.optim.sophia"
    schedulable: ClassVar[Mapping[str, str]] = BETAS
    averages: ClassVar[int] = 2

    @property
    def compares_gradients(self) -> bool:
        return True


class PolarDescent(WithMoments):
    """Adam of the norm of all parameters, and of their direction, each by itself, as in ZQZCalin's fork of Trainit."""

    type: Literal["polar-descent"]
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-8
    """Added to the root of the second average."""
    norm_rate: Ratio = 1.0
    """The learning rate of the norm, as a multiple of `learning_rate`, which is that of the direction: a vector of norm
    1, so that N parameters want a rate about sqrt(N) lower than Adam does."""

    implementation: ClassVar[str] = "trainkit.optim.polar"
    schedulable: ClassVar[Mapping[str, str]] = BETAS
    owns_rate: ClassVar[bool] = True
    averages: ClassVar[int] = 2


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (AdamW, Adam, NAdam, NAdamW, Adamax, Adan, AdEMAMix, Adopt, Lamb, Sophia, PolarDescent)
