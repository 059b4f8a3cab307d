"""[train]: how long, and in what batches."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.families.sizes import Remat
from trainkit.recipe.spec import Count, NotNegative, Positive, Spec


class Train(Spec):
    steps: Count | None = None
    """Length of the run in steps (optimiser updates)."""
    epochs: Positive | None = None
    """Length of the run in passes over the training data; a fraction is possible."""
    tokens: Count | None = None
    """Length of the run in tokens, rounded up to whole steps. Padding does not count: where examples are padded (every
    encoding but `concatenate`), the average batch decides, so all data is tokenised before the first step."""
    batch_size: Count
    """Sequences per step on all devices together."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    """Sequences that one device processes at once; the rest is accumulated. `auto` is the largest number that fits."""
    remat: Literal["auto"] | Remat = "auto"
    """What the backward pass computes again to save memory: nothing (`none`); everything but the products with
    parameters (`dots`); each block from its input (`blocks`); the same with the inputs in the host's memory (`offload`,
    for GPU and TPU). `auto` is the fastest of them that fits."""
    max_grad_norm: NotNegative = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns this off."""

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        given = [key for key in ("steps", "epochs", "tokens") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"give exactly one of steps, epochs and tokens; found {found}")
        return self
