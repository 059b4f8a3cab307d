"""[model] type = "mpt", with its closed-form sizes."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainkit.recipe.pretrained import Pretrained
from trainkit.recipe.sizes import check_heads, kept, visible
from trainkit.recipe.spec import Count, Positive
from trainkit.recipe.train import Remat


class Mpt(Pretrained):
    """MPT (MosaicML 2023): positions by ALiBi, layer norm before each sub-layer, exact GELU, no biases at all."""

    type: Literal["mpt"] = "mpt"
    layers: Count
    """Number of transformer blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Attention heads; must divide `hidden`."""
    expansion_ratio: Count = 4
    """Width inside the MLP as a multiple of `hidden`; transformers knows models of 4 only."""
    context_length: Count | None = None
    """The longest text that it is meant for; `data.sequence_length` where not given."""
    tied: bool = True
    """Whether the output matrix is the token embedding."""
    layer_norm_eps: Positive = 1e-5
    """Added to the variance in the norms."""
    clip_qkv: Positive | None = None
    """Queries, keys and values are cut off at this size; nothing is where not given."""
    softmax_scale: Positive | None = None
    """What scores are multiplied with; one by the root of a head's width where not given."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Mpt:
        check_heads(self.heads, self.hidden)
        return self

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads

    @property
    def special_attention(self) -> str | None:
        return "ALiBi's slopes"

    @property
    def mlp_width(self) -> int:
        return self.expansion_ratio * self.hidden

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        d = self.hidden
        parts = {
            "token_embedding": vocab_size * d,
            "blocks": self.layers * (self._matrices() + 2 * d),
            "final_norm": d,
        }
        if not self.tied:
            parts["output"] = vocab_size * d
        return parts

    def matmul_parameters(self, *, vocab_size: int) -> int:
        return self.layers * self._matrices() + vocab_size * self.hidden

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each visible position, in every layer
        seen = visible(sequence_length=sequence_length, window=None)
        return self.layers * 2 * 2 * self.hidden * seen // sequence_length

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d = self.hidden
        # two norms and what they scaled, q, k, v, attention output in two shapes; GELU and its slope; probabilities,
        # `flash` or not: no flash attention here has slopes
        everything = 9 * d + 2 * self.mlp_width + self.heads * sequence_length
        # residual, q, k, v, what attention and MLP add to it, MLP before GELU
        dots = 6 * d + self.mlp_width
        return kept(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)

    def _matrices(self) -> int:
        """Numbers in the matrices of one block."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.mlp_width
