"""[model]: every family of `recipe/families`.

What can be computed about a model without building it is computed there, so that a plan needs no jax.
Each family answers the questions of `families/model.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from trainkit.recipe.families import FAMILIES
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.spec import union_of

#: Every model of the recipe language.
MODELS = tuple(family.spec for family in FAMILIES)

if TYPE_CHECKING:
    Model: TypeAlias = ModelSpec
else:
    Model = union_of("gpt2", *MODELS)
