"""[evaluate]: when and on how much of the validation sets the model is evaluated."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Spec


class Evaluate(Spec):
    """Every validation set, at these steps and at the end."""

    every: Count | None = None
    """Steps from one evaluation to the next; only at the end where not given."""
    batch_size: Count | None = None
    """Sequences at once. Where not given a batch is `train.batch_size`, gone through in as many parts as in a step."""
    max_batches: Count | None = None
    """Evaluate a random sample of so many batches of each set, whatever the parts: the same sample all through the run
    and on resume, drawn by `run.seed`. All of it where not given."""
