"""Online-to-non-convex conversion, and the online learners that choose its updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import Decay, OptimizerSpec
from trainkit.recipe.spec import Eps, LossWeight, NotNegative, PositiveRatio, Spec
from trainkit.recipe.union import OneOf

Discount = Annotated[float, Field(gt=0, le=1)]


class LearnerSpec(Spec):
    """What every online learner has: it is given gradients, and chooses the next update."""

    type: str

    implementation: ClassVar[str]
    """The `module:function` that returns the learner from its spec."""
    arrays: ClassVar[int]
    """How many arrays of a parameter's shape its state has, beside the update itself."""


class OnlineDescent(LearnerSpec):
    """Online gradient descent within a ball, the learner of the paper (Zinkevich 2003)."""

    type: Literal["descent"]
    radius: NotNegative = 0.0
    """The greatest norm of an update, over all parameters; 0 sets no limit."""
    regularization: LossWeight = 0.0
    """Adds so many times half the squared norm of the update to the loss."""

    implementation: ClassVar[str] = "trainkit.optim.online:descent"
    arrays: ClassVar[int] = 0


class MirrorDescent(LearnerSpec):
    """Online mirror descent with discounted losses, by which the conversion becomes gradient descent with momentum and
    random steps (Zhang & Cutkosky 2024, arXiv:2405.09742)."""

    type: Literal["mirror-descent"] = "mirror-descent"
    discount: Discount = 0.99
    """The share of the update that stays, as the momentum of gradient descent."""
    regularization: LossWeight = 0.0
    """Divides the update by 1 + learning rate x regularization."""

    implementation: ClassVar[str] = "trainkit.optim.online:mirror_descent"
    arrays: ClassVar[int] = 0


class AdaptiveFtrl(LearnerSpec):
    """Follow the regularized leader with discounted losses, whose updates are those of Adam without debiasing (Ahn et
    al. 2024, arXiv:2402.01567)."""

    type: Literal["ftrl"]
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the averages of the gradients and of their squares."""
    eps: Eps = 1e-8
    """Added to the root of the second average."""

    implementation: ClassVar[str] = "trainkit.optim.online:ftrl"
    arrays: ClassVar[int] = 2


class CoinBetting(LearnerSpec):
    """Krichevsky-Trofimov betting on every number by itself, which needs no learning rate (Orabona 2019, algorithm
    9.2): `optimizer.learning_rate` multiplies the updates, leave it at 1."""

    type: Literal["coin-betting"]
    wealth: PositiveRatio = 1e-4
    """The wealth that each bet begins with: the lower, the smaller the first updates."""
    lipschitz: PositiveRatio = 1.0
    """The greatest magnitude of a number of the gradient."""

    implementation: ClassVar[str] = "trainkit.optim.online:coin_betting"
    arrays: ClassVar[int] = 2


class OneCoin(LearnerSpec):
    """One bet on the size of the update, along the direction of a discounted sum of gradients (Cutkosky & Orabona 2018,
    algorithm 2). `optimizer.learning_rate` multiplies the updates, leave it at 1."""

    type: Literal["one-coin"]
    wealth: PositiveRatio = 1.0
    """The wealth that the bet begins with: the lower, the smaller the first updates."""
    lipschitz: PositiveRatio = 1.0
    """The greatest norm of a gradient, such as `train.max_grad_norm`."""
    discount: Discount = 0.99
    """The share of the sum of gradients that stays from step to step."""
    regularization: LossWeight = 0.0
    """Adds so many times half the squared norm of the update to the loss."""

    implementation: ClassVar[str] = "trainkit.optim.online:one_coin"
    arrays: ClassVar[int] = 1


Learner: TypeAlias = Annotated[
    LearnerSpec, OneOf("mirror-descent", OnlineDescent, MirrorDescent, AdaptiveFtrl, CoinBetting, OneCoin)
]


class OnlineToNonConvex(OptimizerSpec):
    """Updates chosen by an online learner and scaled at random (Cutkosky, Mehta & Orabona 2023, arXiv:2302.03775)."""

    type: Literal["online-to-non-convex"]
    learner: Learner = MirrorDescent()
    """The online learner, which sees the gradients one after the other and chooses the next update."""
    scaling: Literal["exponential", "uniform", "none"] = "exponential"
    """The random number that scales each update. `exponential`, of mean 1, as in Zhang & Cutkosky 2024; `uniform` takes
    the gradient at a random place between the parameters before and after the whole update, as in the paper, and moves
    on by the rest of it in the next step; `none` takes updates as they are."""

    implementation: ClassVar[str] = "trainkit.optim.online"
    owns_rate: ClassVar[bool] = True
    unscheduled: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("momentum", "beta2"), "its learner decides how gradients enter the updates"
    )
    state_keys: ClassVar[frozenset[str]] = frozenset({"type"})

    def state_key_values(self) -> dict[str, Any]:
        return super().state_key_values() | {"learner.type": self.learner.type, "uniform": self.scaling == "uniform"}

    def state_bytes(self, shape: Shape) -> int:
        return 4 * math.prod(shape) * (1 + self.learner.arrays + (self.scaling == "uniform"))


#: Those of this file; `Optimizer` in `spec.py` lists the files.
OPTIMIZERS = (OnlineToNonConvex,)
