"""[[optimizer.wrappers]]: what changes the updates of any optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from trainkit.recipe.spec import Spec, union_of


class WrapperSpec(Spec):
    """What every wrapper has, and what the rest of trainkit asks of it."""

    type: str

    implementation: ClassVar[str]
    """The module, or `module:function`, whose `build(spec, inner)` returns the transformation `inner`, changed."""
    around: ClassVar[Literal["rule", "update"]]
    """What it is given: the rule alone (from the gradients to the descent directions), or all of the update with weight
    decay and the factors of groups, so that parameters - learning rate x directions are the next parameters."""
    has_state: ClassVar[bool] = False
    """Whether it keeps a state of its own, so that a checkpoint without it does not fit."""

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of state kept for one parameter of this shape."""
        return 0


class Cautious(WrapperSpec):
    """Update only where the direction agrees in sign with the gradient (Liang et al. 2024, arXiv:2411.16085).

    What is left is scaled up by the share of what agrees, so that the mean size of the update stays.
    """

    type: Literal["cautious"]

    implementation: ClassVar[str] = "trainkit.optim.cautious"
    around: ClassVar[Literal["rule", "update"]] = "rule"


#: Every wrapper of the recipe language.
WRAPPERS = (Cautious,)

if TYPE_CHECKING:
    Wrapper: TypeAlias = WrapperSpec
else:
    Wrapper = union_of("", *WRAPPERS)
