"""[optimizer]: every update rule of the recipe language."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trainkit.recipe.optimizers import spec
from trainkit.recipe.optimizers.adam import Adam, Adamax, AdamW, Adan, AdEMAMix, Adopt, Lamb, NAdam, NAdamW, Sophia
from trainkit.recipe.optimizers.first_order import Adafactor, Adagrad, Lars, Lion, NormalizedSgd, RmsProp, Sgd
from trainkit.recipe.optimizers.matrix import Muon
from trainkit.recipe.optimizers.parameter_free import DAdaptAdam, Prodigy, ScheduleFree
from trainkit.recipe.optimizers.spec import OptimizerSpec, Shape
from trainkit.recipe.spec import union_of

#: Plugins that were written for earlier versions import `OptimizerSpec` and `Shape` from here.
__all__ = ["OPTIMIZERS", "Optimizer", "OptimizerSpec", "Shape"]

#: Every optimizer of the recipe language.
OPTIMIZERS = (
    # adam.py
    AdamW,
    Adam,
    NAdam,
    NAdamW,
    Adamax,
    Adan,
    AdEMAMix,
    Adopt,
    Lamb,
    Sophia,
    # first_order.py
    Sgd,
    NormalizedSgd,
    Lars,
    RmsProp,
    Adagrad,
    Adafactor,
    Lion,
    # matrix.py
    Muon,
    # parameter_free.py
    ScheduleFree,
    Prodigy,
    DAdaptAdam,
)

if TYPE_CHECKING:
    Optimizer: TypeAlias = OptimizerSpec
else:
    Optimizer = union_of("adamw", *OPTIMIZERS)
    # a group may choose any optimizer, and its annotation is evaluated in its own module
    spec.Optimizer = Optimizer
