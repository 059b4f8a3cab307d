"""[train]: how long, and in what batches."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.spec import Count, NotNegative, Positive, Spec


class Train(Spec):
    steps: Count | None = None
    """Optimiser updates."""
    epochs: Positive | None = None
    """Passes over the training data."""
    tokens: Count | None = None
    """Tokens seen in training; rounded up to whole steps."""
    batch_size: Count
    """Sequences per step, over all devices."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    """Sequences that one device processes at once; the rest is accumulated."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        given = [key for key in ("steps", "epochs", "tokens") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"give exactly one of steps, epochs and tokens; found {found}")
        return self
