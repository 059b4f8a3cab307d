"""[evaluate]: when and on how much of the validation sets the model is evaluated."""

from __future__ import annotations

from trainkit.recipe.spec import Count, Spec


class Evaluate(Spec):
    """When and on how much of each validation set the model is evaluated."""

    every: Count | None = None
    """Steps between evaluations; there is always one at the end. If absent, there is no other."""
    batch_size: Count | None = None
    """Sequences per batch, all at once. If absent, a batch has `train.batch_size` sequences, in the parts of a step."""
    max_batches: Count | None = None
    """Largest number of batches of each set to evaluate: a random sample drawn with `run.seed`, the same throughout the
    run and after a resume. If absent, the whole set is evaluated."""
