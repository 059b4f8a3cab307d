"""`[model] pretrained`: the keys that every family has, and what a checkpoint says of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.spec import Count, Spec


class Pretrained(Spec):
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

    @model_validator(mode="after")
    def _goes_with_pretrained(self) -> Pretrained:
        if self.pretrained is None and (self.revision is not None or self.resize_vocabulary):
            key = "revision" if self.revision is not None else "resize_vocabulary"
            raise ValueError(f'{key} goes with pretrained = "…"')
        if self.resize_vocabulary and self.vocab_size is not None:
            raise ValueError("resize_vocabulary makes vocab_size that of the tokenizer: give one of them")
        return self

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


#: What a recipe may say otherwise than the checkpoint that its model begins with: no shape hangs on it.
CHANGEABLE = frozenset({"context_length", "rope_theta", "rope_scaling", "local_theta", "window", "router_loss"})


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint that a model begins with says of it."""

    values: dict[str, Any]
    """Keys of `[model]`, `type` among them."""
    pretrained: str
    """Its directory, or its hub id."""
    revision: str | None
    """Its commit where it is from the hub."""
    config: str
    """Where the values were read."""

    def values_for(self, model: dict[str, Any]) -> dict[str, Any]:
        """Those that count below what a recipe's `[model]` says. Raises TrainkitError where that contradicts them."""
        wrong = [
            key for key, value in self.values.items() if key in model and key not in CHANGEABLE and model[key] != value
        ]
        if wrong:
            from trainkit.recipe.write import toml_value  # which knows whole recipes, and so models

            lines = [f"  {k} = {toml_value(model[k])}: the checkpoint has {toml_value(self.values[k])}" for k in wrong]
            raise TrainkitError(
                "[model] says otherwise than its checkpoint:\n" + "\n".join(lines),
                hint=f"leave them out; what may differ: {', '.join(sorted(CHANGEABLE))}",
            )
        resized = model.get("resize_vocabulary") is True
        return {key: value for key, value in self.values.items() if not (resized and key == "vocab_size")}


#: Finds the checkpoint of `model.pretrained` and `model.revision`. Raises TrainkitError.
LookUp = Callable[[str, str | None], Checkpoint]
