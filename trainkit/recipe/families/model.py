"""What every model of `[model]` is asked, so that a plan needs neither jax nor the model itself.

A model that is neither of text nor of images is of kind `plain`: its spec derives from `ModelSpec` alone. Language
models derive from `Transformer`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import PrivateAttr

from trainkit.recipe.families.sizes import Remat, Shape
from trainkit.recipe.spec import Spec

#: What a model computes, which is what a task asks for: never a family by name.
Kind = Literal["causal", "encoder", "encoder-decoder", "vision", "vision-language", "plain"]
#: Kinds whose models write text.
WRITING: frozenset[Kind] = frozenset({"causal", "encoder-decoder"})
#: What a head gives: logits of the vocabulary at every position; scores of classes for a sequence, or for each token;
#: or two scores for each token, of whether a span begins and ends with it.
HeadKind = Literal["tokens", "sequence", "token", "span"]


class Head(NamedTuple):
    """The outputs of a model that its task asks for."""

    kind: HeadKind
    width: int
    """Classes; 0 of `tokens`, 2 of `span`."""
    names: tuple[str, ...] = ()
    """Of the classes, in the order of their numbers, where they are known."""
    new: bool = False
    """Whether its last layer begins at random, whatever a checkpoint has."""
    problem: str | None = None
    """What the scores of a sequence mean, as `problem_type` of transformers names it; None if unknown."""


TOKENS = Head("tokens", 0)


class HeadLayers(NamedTuple):
    """The layers of a head with classes."""

    at: Literal["first", "last", "mean", "each"]
    """The position whose hidden state the head scores: the first, the last without padding, or each; or the mean of all
    without padding."""
    dense: Literal["tanh", "relu", "gelu"] | None = None
    """The function after a matrix of (hidden, hidden) that comes first; None where there is none."""
    bias: bool = True
    """Whether the last matrix has a bias."""
    dense_bias: bool = True
    """Whether the first matrix has a bias."""
    norm: float | None = None
    """Added to the variance in a layer norm without bias after the activation; None if there is no norm."""


class ModelSpec(Spec):
    """The sizes of a model in closed form.

    A position is a token of a text; where documents are not text, an example is one position.
    """

    kind: ClassVar[Kind] = "plain"
    implementation: ClassVar[str]
    """The module whose `build` returns the model."""

    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {}
    """The heads with classes that it can have, and their layers."""

    type: str
    _head: Head = PrivateAttr(default=TOKENS)

    @property
    def head(self) -> Head:
        """Its head. No key of a recipe says it: it follows from the task."""
        return self._head

    def with_head(self, head: Head) -> Self:
        """Return the same model with another head, which it can have."""
        assert head.kind == "tokens" or head.kind in self.class_heads, (self.type, head)
        changed = self.model_copy()
        changed._head = head
        return changed

    @abstractmethod
    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        """Return the shape of every parameter by its path; where documents are not text, `vocab_size` is 0."""

    @abstractmethod
    def matmul_parameters(self, *, vocab_size: int) -> int:
        """Return how many parameters every position is multiplied with: embeddings looked up by index do not count."""

    def matmul_parameters_once(self) -> int:
        """Return how many parameters one vector of each sequence is multiplied with: those of a head that scores it."""
        return 0

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
