"""Decoders that are made as GPT-2 is: attention and an MLP of two matrices, each after a layer norm.

What is a family's own it says by fields, by the facts below them, and by the properties that it overrides. The model
that is made of it (`models/gpt.py`) asks the same questions.
"""

from __future__ import annotations

from typing import ClassVar

from trainkit.recipe.families.gelu_transformer import GeluTransformer
from trainkit.recipe.families.sizes import Shape, linear, norm, stack, visible


class GptDecoder(GeluTransformer):
    """A decoder with layer norms, one matrix for queries, keys and values, and GELU."""

    tied: bool = True

    implementation: ClassVar[str] = "trainkit.models.gpt"

    learned_positions: ClassVar[bool] = True
    """Whether each of `context_length` positions has an embedding; scores have ALiBi's slopes otherwise."""
    biased: ClassVar[bool] = True
    """Whether matrices and norms have biases."""
    exact_gelu: ClassVar[bool] = False
    """Whether GELU is by the error function, and not by a hyperbolic tangent."""

    @property
    def norm_epsilon(self) -> float:
        """Added to the variance in the norms."""
        return 1e-5

    @property
    def clip(self) -> float | None:
        """Queries, keys and values are cut off at this size; None: they are not."""
        return None

    @property
    def special_attention(self) -> str | None:
        return None if self.learned_positions else "ALiBi's slopes"

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, f, bias = self.hidden, self.mlp_width, self.biased
        block = {
            **norm("attention_norm", d, bias=bias),
            **linear("attention.qkv", d, 3 * d, bias=bias),
            **linear("attention.output", d, d, bias=bias),
            **norm("mlp_norm", d, bias=bias),
            **linear("mlp_in", d, f, bias=bias),
            **linear("mlp_out", f, d, bias=bias),
        }
        positions: dict[str, Shape] = {"position_embedding": (self.context_length or sequence_length, d)}
        output: dict[str, Shape] = {} if self.tied else {"output": (vocab_size, d)}
        return {
            "token_embedding": (vocab_size, d),
            **(positions if self.learned_positions else {}),
            **stack(self.layers, block),
            **norm("final_norm", d, bias=bias),
            **output,
        }

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each visible position, in every layer
        seen = visible(sequence_length=sequence_length, window=None)
        return self.layers * 2 * 2 * self.hidden * seen // sequence_length
