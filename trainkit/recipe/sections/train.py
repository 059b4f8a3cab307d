"""[train]: how long, and in what batches."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.spec import Count, NotNegative, Positive, Spec


class Train(Spec):
    steps: Count | None = None
    """Optimiser updates."""
    epochs: Positive | None = None
    """Passes over the training data."""
    tokens: Count | None = None
    """Tokens seen in training; rounded up to whole steps. Padding is none: where examples have any (every encoding but
    `concatenate`), steps are counted by the tokens that a batch has on average, so all data is tokenised first."""
    batch_size: Count
    """Sequences per step, over all devices."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    """Sequences that one device processes at once; the rest is accumulated."""
    remat: Literal["auto"] | Remat = "auto"
    """What is computed again in the backward pass instead of being kept: nothing (`none`), all but the results of the
    products with parameters (`dots`), each block from its input (`blocks`), or that with the inputs in the host's
    memory (`offload`, for GPU and TPU). `auto` is the cheapest of them that fits."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        given = [key for key in ("steps", "epochs", "tokens") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"give exactly one of steps, epochs and tokens; found {found}")
        return self
