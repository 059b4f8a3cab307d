"""What every model of `[model]` is asked, so that a plan needs neither jax nor the model itself.

A model that is neither of text nor of images is of kind `plain`: its spec derives from `ModelSpec` alone. Language
models derive from `Transformer`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal

from trainkit.recipe.families.sizes import Remat, Shape
from trainkit.recipe.spec import Spec

#: What a model computes, which is what a task asks for: never a family by name.
Kind = Literal["causal", "encoder", "encoder-decoder", "vision", "vision-language", "plain"]


class ModelSpec(Spec):
    """The sizes of a model in closed form.

    A position is a token of a text; where documents are not text, an example is one position.
    """

    kind: ClassVar[Kind] = "plain"
    implementation: ClassVar[str]
    """The module whose `build` returns the model."""

    type: str

    @abstractmethod
    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        """Return the shape of every parameter by its path; where documents are not text, `vocab_size` is 0."""

    @abstractmethod
    def matmul_parameters(self, *, vocab_size: int) -> int:
        """Return how many parameters every position is multiplied with: embeddings looked up by index do not count."""

    @abstractmethod
    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        """Return an estimate of the numbers kept per position for the backward pass; `auto` is taken for `none`.

        With `flash`, attention keeps no probabilities.
        """

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        """Return the forward FLOPs of scores and weighted sums for one token, averaged over causal positions."""
        return 0

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        """Return the number of parameters by part."""
        shapes = self.leaf_shapes(vocab_size=vocab_size, sequence_length=sequence_length)
        parts = dict.fromkeys((name.partition(".")[0] for name in shapes), 0)
        for name, shape in shapes.items():
            parts[name.partition(".")[0]] += math.prod(shape)
        return parts

    def rows(self, tokens: int) -> int:
        """Return the rows of the token embedding for a tokenizer of so many entries, if there is one."""
        return tokens
