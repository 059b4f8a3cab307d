"""[export]: the model for other programs, written during training."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.spec import Count, Spec


class Export(Spec):
    """Write the model for other programs during training, as `trainkit export` does, into the run's `exports/STEP`.

    A separate process makes each export from a checkpoint; if it fails, an alert says so and training continues.
    """

    every: Count | None = None
    """Steps between exports; there is always one at the end. If absent, there is no other."""
    format: Literal["auto", "hf", "peft"] = "auto"
    """`hf` is the whole model for transformers, with an adapter merged into its base; `peft` is the adapter alone.
    `auto` is `peft` if the recipe has an adapter, and otherwise `hf`."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Dtype of the exported weights. If absent, it is that of training. An adapter alone is always float32."""
