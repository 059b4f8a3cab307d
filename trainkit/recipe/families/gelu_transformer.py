"""What GPT-2, MPT and BERT share: heads that divide the hidden width, and an MLP of two matrices around a GELU."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.families.sizes import Remat, check_heads, kept_numbers
from trainkit.recipe.families.transformer import Transformer


class GeluTransformer(Transformer):
    """A stack of blocks with four attention matrices of (hidden, hidden) and an MLP of two, each with a layer norm."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> GeluTransformer:
        check_heads(self.heads, self.hidden)
        return self

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads

    @property
    def special_attention(self) -> str | None:
        return None

    def matmul_parameters(self, *, vocab_size: int) -> int:
        blocks = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.mlp_width)
        return blocks + vocab_size * self.hidden

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d = self.hidden
        probabilities = 0 if flash and self.special_attention is None else self.heads * sequence_length
        # two norms and what they scaled, q, k, v, attention output in two shapes; GELU and its slope
        everything = 9 * d + 2 * self.mlp_width + probabilities
        # residual, q, k, v, what attention and MLP add to it, MLP before GELU
        dots = 6 * d + self.mlp_width
        return kept_numbers(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)
