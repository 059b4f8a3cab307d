"""[optimizer]: every update rule of the recipe language."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trainkit.recipe.optimizers import adam, first_order, mango, matrix, online, parameter_free, preconditioned, spec
from trainkit.recipe.optimizers.spec import OptimizerSpec, Shape
from trainkit.recipe.spec import union_of

#: Plugins that were written for earlier versions import `OptimizerSpec` and `Shape` from here.
__all__ = ["OPTIMIZERS", "Optimizer", "OptimizerSpec", "Shape"]

#: Every optimizer of the recipe language.
OPTIMIZERS = (
    *adam.OPTIMIZERS,
    *first_order.OPTIMIZERS,
    *mango.OPTIMIZERS,
    *matrix.OPTIMIZERS,
    *online.OPTIMIZERS,
    *parameter_free.OPTIMIZERS,
    *preconditioned.OPTIMIZERS,
)

if TYPE_CHECKING:
    Optimizer: TypeAlias = OptimizerSpec
else:
    Optimizer = union_of("adamw", *OPTIMIZERS)
    # a group may choose any optimizer, and its annotation is evaluated in its own module
    spec.Optimizer = Optimizer
