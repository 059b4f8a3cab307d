"""[export]: the model for other programs, written during training."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Spec


class Export(Spec):
    """The model for other programs, at these steps and at the end, as `trainkit export` writes it, into the run's
    `exports/STEP`. Each is made from a checkpoint by a process of its own, whose failure is an alert and stops nothing.
    """

    every: Count | None = None
    """Steps from one export to the next; only at the end where not given."""
    format: Literal["auto", "hf", "peft"] = "auto"
    """`hf` is what transformers loads, an adapter merged into its base; `peft` is the adapter alone. `auto` is `peft`
    where there is an adapter."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Of the weights; where not given as in training. An adapter alone is float32."""
