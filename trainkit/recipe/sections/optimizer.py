"""[optimizer]: every update rule of the recipe language. Plugins of earlier versions import these names from here."""

from trainkit.recipe.optimizers.parameters import Shape
from trainkit.recipe.optimizers.spec import Optimizer, OptimizerSpec

__all__ = ["Optimizer", "OptimizerSpec", "Shape"]
