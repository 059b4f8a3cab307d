"""AdamW and what is derived from it."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.optimizers.spec import Decay, WithMoments
from trainkit.recipe.spec import NotNegative, Positive


class AdamW(WithMoments):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    type: Literal["adamw"] = "adamw"
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the averages of the gradients and of their squares."""
    eps: Positive = 1e-8
    """Added to the root of the second average."""
    weight_decay: NotNegative = 0.1

    implementation: ClassVar[str] = "trainkit.optim.adamw"
    averages: ClassVar[int] = 2
