"""[model]: every family of `recipe/families`.

What can be computed about a model without building it is computed there, so that a plan needs no jax.
Each family answers the questions of `families/model.py`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from trainkit.recipe import families
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.union import OneOf

#: Any model of the recipe language.
Model: TypeAlias = Annotated[
    ModelSpec, OneOf("gpt2", *(f"{families.__name__}.{name}:FAMILY.spec" for name in families.NAMES))
]
