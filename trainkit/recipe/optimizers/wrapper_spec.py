"""The interface of wrappers: what the rest of trainkit asks of what changes the updates of any optimizer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from trainkit.recipe.spec import Spec
from trainkit.recipe.union import OneOf

Around = Literal["rule", "update"]


class WrapperSpec(Spec):
    """What every wrapper has, and what the rest of trainkit asks of it."""

    type: str

    implementation: ClassVar[str]
    """The module, or `module:function`, whose `build(spec, inner)` returns the transformation `inner`, changed."""
    around: ClassVar[Around]
    """What it is given: the rule alone (from the gradients to the descent directions), or all of the update with weight
    decay and the factors of groups, so that parameters - learning rate x directions are the next parameters."""
    by_layer: ClassVar[bool] = False
    """Whether it computes one number for each layer's parameter. Its `build` then takes `stacked` as well: for each
    parameter, whether its first axis is that of layers."""
    changes_steps: ClassVar[bool] = False
    """Whether steps end elsewhere than the rule means them to, so that an average which the rule computes is wrong."""
    has_state: ClassVar[bool] = False
    """Whether it keeps a state of its own, so that a checkpoint without it does not fit."""

    @property
    def compares_gradients(self) -> bool:
        """Return whether it compares gradients at parameters so near to one another that 16 bits may be too few to tell
        them apart: `grad_fn` then computes in float32."""
        return False

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of state kept for one parameter of this shape."""
        return 0

    def note(self, *, max_grad_norm: float) -> str | None:
        """Return what `train.max_grad_norm` spoils for it, and what to write; None if nothing."""
        return None

    @property
    def kind_of_state(self) -> str:
        """Return what its state is, in words: with another kind a checkpoint does not fit."""
        return self.type


#: Any wrapper of the recipe language.
Wrapper: TypeAlias = Annotated[WrapperSpec, OneOf("", "trainkit.recipe.optimizers.wrappers:WRAPPERS")]
