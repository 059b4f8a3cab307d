"""[task]: what is learned from the documents."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Spec


class CausalLM(Spec):
    """Predict each token from those before it."""

    type: Literal["causal-lm"] = "causal-lm"


Task = CausalLM
