"""What every family of `[model]` is asked, so that a plan needs neither jax nor the model itself."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Literal

from trainkit.recipe.families.pretrained import Pretrained
from trainkit.recipe.families.sizes import Remat, Shape
from trainkit.recipe.spec import Count, NotNegative

#: What a model computes, which is what a task asks for: never a family by name.
Kind = Literal["causal", "encoder", "encoder-decoder", "vision", "vision-language", "plain"]


class Transformer(Pretrained):
    """A stack of blocks with attention and an MLP each. The sizes are in closed form; a test holds them against the
    real pytree."""

    kind: ClassVar[Kind] = "causal"
    implementation: ClassVar[str]
    """The module whose `build` returns the model."""
    has_experts: ClassVar[bool] = False
    """Whether most of its weights are those of experts, which are neither quantised nor multiplied in 8 bit."""

    type: str
    layers: Count
    """Number of transformer blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Attention heads; must divide `hidden`."""
    context_length: Count | None = None
    """The longest text that it is meant for; `data.sequence_length` where not given."""
    tied: bool
    """Whether the output matrix is the token embedding."""
    initializer_range: NotNegative = 0.02
    """Standard deviation of random weights; of matrices that add to the residual stream less, the deeper the model."""

    @property
    @abstractmethod
    def key_width(self) -> int:
        """Width of one head."""

    @property
    @abstractmethod
    def mlp_width(self) -> int:
        """Width inside the MLP, or inside one expert."""

    @property
    def score_scale(self) -> float | None:
        """What scores are multiplied with; None: one by the root of `key_width`."""
        return None

    @property
    @abstractmethod
    def special_attention(self) -> str | None:
        """What of its attention no flash attention has, in the plural; None where any will do."""

    @abstractmethod
    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        """Return the shape of every parameter by its path; a test compares it with the real pytree."""

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        """Return the number of parameters by part."""
        shapes = self.leaf_shapes(vocab_size=vocab_size, sequence_length=sequence_length)
        parts = dict.fromkeys((name.partition(".")[0] for name in shapes), 0)
        for name, shape in shapes.items():
            parts[name.partition(".")[0]] += math.prod(shape)
        return parts

    @abstractmethod
    def matmul_parameters(self, *, vocab_size: int) -> int:
        """Parameters that every token is multiplied with: embeddings looked up by index do not count."""

    @abstractmethod
    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        """Forward FLOPs of scores and weighted sums for one token, averaged over causal positions."""

    @abstractmethod
    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        """Estimated numbers kept per token for the backward pass; `auto` is taken for `none`.

        With `flash`, attention keeps no probabilities.
        """
