"""The keys of `[model]` that every family has: where its first weights come from, and how many tokens it knows."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.families.model import ModelSpec
from trainkit.recipe.spec import Count

#: What a recipe may say otherwise than the checkpoint that its model begins with, where no shape depends on it.
CHANGEABLE = frozenset(
    {"context_length", "rope_theta", "rope_scaling", "local_theta", "window", "router_loss", "pad_token_id"}
)


class Pretrained(ModelSpec):
    """Where a model's first weights come from, and how many tokens it knows."""

    pretrained: str | None = None
    """A directory with a Hugging Face checkpoint, or a hub id, to begin with; random weights where not given. The
    family and its sizes are read from its config.json, and what is said here besides goes before that."""
    revision: str | None = None
    """Branch, tag or commit on the hub; a run keeps the commit that it found."""
    resize_vocabulary: bool = False
    """Cut or widen the embedding of `pretrained` to the tokenizer; new rows are the mean of the old ones."""
    vocab_size: Count | None = None
    """Rows of the embedding; as many as the tokenizer has entries where not given. More are padding."""
    pad_token_id: int | None = None
    """The token that transformers pads an export with. Training ignores it: padding is known by its place."""

    changeable: ClassVar[frozenset[str]] = CHANGEABLE
    """What may be said otherwise than the checkpoint says it."""

    @model_validator(mode="after")
    def _goes_with_pretrained(self) -> Pretrained:
        if self.pretrained is None and (self.revision is not None or self.resize_vocabulary):
            key = "revision" if self.revision is not None else "resize_vocabulary"
            raise ValueError(f'{key} goes with pretrained = "…"')
        if self.resize_vocabulary and self.vocab_size is not None:
            raise ValueError("resize_vocabulary makes vocab_size that of the tokenizer: give one of them")
        return self

    @property
    def not_in_transformers(self) -> str | None:
        """The key for which transformers loads no such model, its value, and why; None where it loads it."""
        return None

    def rows(self, tokens: int) -> int:
        """Rows of the embedding for a tokenizer of so many entries. Raises TrainkitError where that has more."""
        if self.vocab_size is None or tokens <= self.vocab_size:
            return self.vocab_size or tokens
        if self.pretrained is None:
            hint = "make model.vocab_size larger, or leave it out"
        else:
            hint = "take the tokenizer of the checkpoint, or widen the embedding: [model] resize_vocabulary = true"
        raise TrainkitError(
            f"the tokenizer has {tokens:,} entries, and the embedding {self.vocab_size:,} rows",
            where="model.vocab_size",
            hint=hint,
        )
