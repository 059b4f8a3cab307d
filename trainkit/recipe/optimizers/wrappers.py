"""[[optimizer.wrappers]]: what changes the updates of any optimizer."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainkit.recipe.optimizers.wrapper_spec import Around, WrapperSpec
from trainkit.recipe.spec import GREATEST, Count, Eps, Fraction, Positive, PositiveRatio, Width


class Cautious(WrapperSpec):
    """Update only where the direction agrees in sign with the gradient (Liang et al. 2024, arXiv:2411.16085).

    What is left is scaled up by the share of what agrees, so that the mean size of the update stays.
    """

    type: Literal["cautious"]

    implementation: ClassVar[str] = "trainkit.optim.cautious"
    around: ClassVar[Around] = "rule"
    by_layer: ClassVar[bool] = True


class ClipValue(WrapperSpec):
    """Clip every number of the gradient, after the clipping by `train.max_grad_norm`."""

    type: Literal["clip-value"]
    limit: Positive
    """The greatest magnitude of a number of the gradient."""

    implementation: ClassVar[str] = "trainkit.optim.clipping:clip_value"
    around: ClassVar[Around] = "rule"


class ClipLeaf(WrapperSpec):
    """Clip the norm of the gradient of each parameter by itself, layer by layer."""

    type: Literal["clip-leaf"]
    limit: Positive
    """The greatest norm of a parameter's gradient."""

    implementation: ClassVar[str] = "trainkit.optim.clipping:clip_leaf"
    around: ClassVar[Around] = "rule"
    by_layer: ClassVar[bool] = True


class ClipAdaptive(WrapperSpec):
    """Clip the gradient of each output of a matrix, as a share of the norm of its weights (Brock et al. 2021).

    Of a vector, the whole is one unit.
    """

    type: Literal["clip-adaptive"]
    limit: Positive = 0.01
    """The greatest norm of a gradient, as a share of the norm of its weights."""
    eps: Eps = 1e-3
    """The least that the norm of weights is taken for."""

    implementation: ClassVar[str] = "trainkit.optim.clipping:clip_adaptive"
    around: ClassVar[Around] = "rule"
    by_layer: ClassVar[bool] = True


class ClipUpdate(WrapperSpec):
    """Clip the norm of the whole update: that by which the parameters change in a step."""

    type: Literal["clip-update"]
    limit: Positive
    """The greatest norm of learning rate x directions, over all parameters."""

    implementation: ClassVar[str] = "trainkit.optim.clipping:clip_update"
    around: ClassVar[Around] = "update"
    changes_steps: ClassVar[bool] = True


class SkipOutliers(WrapperSpec):
    """Skip a step whose gradient is far greater than those before it, as bad data makes it.

    It sees gradients after `train.max_grad_norm`: set that to 0, or above what is to be skipped. The log has the number
    of skipped steps as `optimizer/skipped`.
    """

    type: Literal["skip-outliers"]
    factor: Annotated[float, Field(gt=1, le=GREATEST)] = 10.0
    """A step is skipped if the norm of its gradient is more than so many times the average norm."""
    window: Width = 100
    """Steps over which norms are averaged; the first ones are never skipped."""

    implementation: ClassVar[str] = "trainkit.optim.skip_outliers"
    around: ClassVar[Around] = "update"
    has_state: ClassVar[bool] = True

    def note(self, *, max_grad_norm: float) -> str | None:
        if not max_grad_norm:
            return None
        return (
            f'"{self.type}" sees gradients that train.max_grad_norm = {max_grad_norm:g} has clipped, so it skips a step'
            f" only while their average norm is below {max_grad_norm / self.factor:g}: write train.max_grad_norm = 0"
        )


class Sam(WrapperSpec):
    """Take the gradient where the loss is greatest nearby, which prefers flat minima (Foret et al. 2021).

    It costs a second pass over the batch in each step, in float32, since 16 bits would round most of the way away.
    """

    type: Literal["sam"]
    rho: PositiveRatio = 0.05
    """How far away the gradient is taken."""
    adaptive: bool = False
    """Whether the distance is relative to each weight (ASAM, Kwon et al. 2021); `rho` is then about ten times that."""

    implementation: ClassVar[str] = "trainkit.optim.sam"
    around: ClassVar[Around] = "rule"

    @property
    def compares_gradients(self) -> bool:
        return True


class Lookahead(WrapperSpec):
    """Every few steps, go back to a share of the way that they went (Zhang et al. 2019)."""

    type: Literal["lookahead"]
    every: Count = 5
    """Steps from one return to the next."""
    share: Fraction = 0.5
    """The share of the way that stays."""

    implementation: ClassVar[str] = "trainkit.optim.lookahead"
    around: ClassVar[Around] = "update"
    changes_steps: ClassVar[bool] = True
    has_state: ClassVar[bool] = True

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 4 * math.prod(shape)


class Offset(WrapperSpec):
    """Add an average of the updates to each update, as in ZQZCalin's fork of Trainit (`muon_adamw`, `mango`)."""

    type: Literal["offset"]
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the average."""

    implementation: ClassVar[str] = "trainkit.optim.offset:build_offset"
    around: ClassVar[Around] = "update"
    changes_steps: ClassVar[bool] = True
    has_state: ClassVar[bool] = True

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 4 * math.prod(shape)


class Transport(WrapperSpec):
    """Move parameters ahead along the change of the updates, so that an average of gradients lags behind less: implicit
    gradient transport (Arnold et al. 2019, arXiv:1906.03532), in the form of Trainit."""

    type: Literal["transport"]
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The momentum of the rule."""
    scale: PositiveRatio = 1.0
    """How far parameters are moved, as a share of beta / (1 - beta) x change."""

    implementation: ClassVar[str] = "trainkit.optim.offset:build_transport"
    around: ClassVar[Around] = "update"
    changes_steps: ClassVar[bool] = True
    has_state: ClassVar[bool] = True

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 4 * math.prod(shape)


class Mars(WrapperSpec):
    """Correct each gradient by how it changed since the last step (Yuan et al. 2024, arXiv:2411.10438).

    The corrected gradient of each parameter, layer by layer, is clipped to norm 1. The paper's optimizers are MARS
    around `adamw`, `lion` or `shampoo`.
    """

    type: Literal["mars"]
    gamma: PositiveRatio = 0.025
    """How strong the correction is."""
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """The first of the rule's betas."""
    exact: bool = False
    """Whether the last gradient is computed again on this step's batch at the last parameters, two further passes in
    float32; without, it is that of the last batch."""

    implementation: ClassVar[str] = "trainkit.optim.mars"
    around: ClassVar[Around] = "rule"
    by_layer: ClassVar[bool] = True
    has_state: ClassVar[bool] = True

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return 4 * math.prod(shape)

    @property
    def compares_gradients(self) -> bool:
        return self.exact

    @property
    def kind_of_state(self) -> str:
        return f"{self.type} of {'parameters' if self.exact else 'gradients'}"


#: Every wrapper of the recipe language, for `Wrapper` in `wrapper_spec.py`.
WRAPPERS = (
    Cautious,
    ClipValue,
    ClipLeaf,
    ClipAdaptive,
    ClipUpdate,
    SkipOutliers,
    Sam,
    Lookahead,
    Offset,
    Transport,
    Mars,
)
