"""[tokenizer]: one that exists, or one trained on the run's own text."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainkit.recipe.spec import Count, Spec


class TrainTokenizer(Spec):
    """A byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) trained on the training documents only."""

    vocab_size: Annotated[int, Field(ge=257)]
    """Entries, the 256 bytes and the end-of-text token included."""
    max_bytes: Count = 50_000_000
    """It is trained on a sample of the documents of so many bytes, of all sources by their weights, or by their sizes
    where they have none; on all of them where there are no more."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Which sample: not hanging on `run.seed`, so that runs that differ in that have one tokenizer."""


class Tokenizer(Spec):
    """Exactly one of `path` and `train`."""

    path: str | None = None
    """A `tokenizer.json`, a directory that holds one, or a Hugging Face hub id."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    train: TrainTokenizer | None = None
    """Train one: `{ vocab_size = 4096 }`."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Tokenizer:
        if (self.path is None) == (self.train is None):
            raise ValueError('give exactly one of path = "…" and train = { vocab_size = … }')
        if self.revision is not None and self.path is None:
            raise ValueError("revision goes with path: the id of a repository on the hub")
        return self
