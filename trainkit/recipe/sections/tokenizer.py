"""[tokenizer]: an existing tokenizer, or one trained on the run's own text."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainkit.recipe.spec import Index, LargeCount, Spec


class TrainTokenizer(Spec):
    """A byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) trained on the training documents only."""

    vocab_size: Annotated[int, Field(ge=257, le=10**7)]
    """Number of entries, including the 256 bytes and the end-of-text token."""
    max_bytes: LargeCount = 50_000_000
    """Size of the sample of documents that it is trained on, in bytes. Sources contribute by their weights, or by their
    sizes if they have none. Smaller training data is used whole."""
    seed: Index = 0
    """Seed of the sample. It is independent of `run.seed`, so that runs with different seeds share a tokenizer."""
    mask: bool = False
    """Whether it also has a mask token, `<|mask|>`, which the task `masked-lm` needs."""


class Tokenizer(Spec):
    """Exactly one of `path` and `train`."""

    path: str | None = None
    """A `tokenizer.json`, a directory that holds one, or a Hugging Face hub id."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    train: TrainTokenizer | None = None
    """Options for training one, such as `{ vocab_size = 4096 }`."""
    new_tokens: tuple[str, ...] = ()
    """Tokens that are added to the tokenizer of `path`, such as `["<positive>", "<negative>"]`: each is one id wherever
    its name stands in a text. Their ids follow the last one; `model.resize_vocabulary` widens the embedding of a
    pretrained model for them."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Tokenizer:
        if (self.path is None) == (self.train is None):
            raise ValueError('give exactly one of path = "…" and train = { vocab_size = … }')
        if self.revision is not None and self.path is None:
            raise ValueError("revision goes with path: the id of a repository on the hub")
        return self

    @model_validator(mode="after")
    def _new_tokens_can_be_added(self) -> Tokenizer:
        if self.new_tokens and self.train is not None:
            raise ValueError(
                "new_tokens are added to a tokenizer that exists: give path instead of train, such as the"
                " tokenizer.json of a run that trained one"
            )
        for number, name in enumerate(self.new_tokens):
            if not name or name != name.strip():
                raise ValueError(
                    f"new_tokens.{number} = {name!r} is empty, or begins or ends with white space:"
                    ' give a name such as "<positive>"'
                )
            if (before := self.new_tokens.index(name)) < number:
                raise ValueError(f"new_tokens.{number} = {name!r} is new_tokens.{before} again: leave one out")
        return self
