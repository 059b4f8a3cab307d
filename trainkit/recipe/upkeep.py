"""[checkpoint], [evaluate], [sample] and [track]: what happens beside the steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainkit.recipe.spec import Count, NotNegative, Positive, Spec


class Checkpoint(Spec):
    """A final checkpoint is written whatever is said here."""

    every_minutes: Positive | None = 10.0
    """Rolling: each replaces the rolling one before it."""
    keep_every: Count | tuple[Count, ...] | None = None
    """Permanent: every so many steps, or at the listed steps."""


class Evaluate(Spec):
    """Every validation set, at these steps and at the end."""

    every: Count | None = None
    """Steps from one evaluation to the next; only at the end where not given."""
    batch_size: Count | None = None
    """Sequences at once; `train.batch_size` where not given."""
    max_batches: Count | None = None
    """Stop after so many batches of each set; all of it where not given."""


class Sample(Spec):
    """Text from the model as it is now, at these steps and at the end."""

    every: Count | None = None
    """Steps from one sample to the next; only at the end where not given."""
    prompts: Annotated[tuple[str, ...], Field(min_length=1)] = ("\n",)
    """Each is continued."""
    max_tokens: Count = 100
    """Tokens to continue with, at most."""
    temperature: NotNegative = 0.8
    """0 always takes the likeliest token."""
    top_k: Count | None = 50
    """Only the likeliest so many are drawn from."""


class Track(Spec):
    aim: bool = True
    """Copy the run's events into Aim, in a process of its own."""
    repository: str = "."
    """Directory of the Aim repository (`.aim` is made in it)."""
    experiment: str = "trainkit"
    """Under which Aim lists the run."""
