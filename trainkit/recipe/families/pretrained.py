"""`[model] pretrained`: the keys that every family has, and what a checkpoint says of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from pydantic import model_validator

from trainkit.errors import TrainkitError
from trainkit.recipe.spec import Count, Spec

#: What a recipe may say otherwise than the checkpoint that its model begins with, where no shape hangs on it.
CHANGEABLE = frozenset(
    {"context_length", "rope_theta", "rope_scaling", "local_theta", "window", "router_loss", "pad_token_id"}
)


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


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """What a checkpoint that a model, or an adapter, begins with says of it."""

    values: dict[str, Any]
    """Keys of its section; of `[model]`, `type` among them."""
    pretrained: str
    """Its directory, or its hub id."""
    revision: str | None
    """Its commit where it is from the hub."""
    config: str
    """Where the values were read."""
    changeable: frozenset[str] = CHANGEABLE
    """Keys that a recipe may give another value."""
    section: Literal["model", "adapter"] = "model"
    """Of the recipe, which begins with it."""

    def values_for(self, given: dict[str, Any]) -> dict[str, Any]:
        """Those that count below what is `given` in its section of the recipe.

        Raises TrainkitError where that contradicts them.
        """
        wrong = [
            key
            for key, value in self.values.items()
            if key in given and key not in self.changeable and given[key] != value
        ]
        if wrong:
            from trainkit.recipe.toml.write import toml_value  # which knows whole recipes, and so models

            lines = [f"  {k} = {toml_value(given[k])}: the checkpoint has {toml_value(self.values[k])}" for k in wrong]
            may = f"; what may differ: {', '.join(sorted(self.changeable))}" if self.changeable else ""
            raise TrainkitError(
                f"[{self.section}] says otherwise than its checkpoint:\n" + "\n".join(lines),
                hint=f"leave them out{may}",
            )
        values = dict(self.values)
        if given.get("resize_vocabulary") is True:
            values.pop("vocab_size", None)
        return values


#: Finds the checkpoint of `model.pretrained` and `model.revision`. Raises TrainkitError.
LookUp = Callable[[str, str | None], PretrainedCheckpoint]


class LookUpAdapter(Protocol):
    """Finds the checkpoint of `adapter.pretrained` and `adapter.revision`."""

    def __call__(
        self, pretrained: str, revision: str | None, *, tables: Mapping[str, Any]
    ) -> PretrainedCheckpoint | None:
        """`tables` is the recipe, whose model the adapter is for; None where that is wrong. Raises TrainkitError."""
