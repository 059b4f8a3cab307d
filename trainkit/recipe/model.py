"""[model]: the families, with their closed-form sizes.

What can be computed about a model without building it is computed here, so that a plan needs no jax.
Each family answers the same questions (`ModelSpec`). The rotary decoders are in `families.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Tag, model_validator

from trainkit.recipe.families import Gemma2, Gemma3, Llama, Mistral, Mixtral, Olmo2, Qwen2, Qwen3, Qwen3Moe
from trainkit.recipe.mpt import Mpt
from trainkit.recipe.pretrained import Pretrained
from trainkit.recipe.sizes import check_heads, kept
from trainkit.recipe.spec import Count, by_type
from trainkit.recipe.train import Remat

#: The logits of a block take no more than this, unless the unembedding's own gradient does: see `tokens_in_block`.
LOGIT_BLOCK_BYTES = 64 << 20


def tokens_in_block(*, tokens: int, hidden: int, vocab_size: int) -> int:
    """Of how many tokens the logits are there at once: all of them, or a power of two, which divides most batches.

    Each block adds once to the gradient of the unembedding, (V, D) in float32, which therefore is moved through memory
    as often as there are blocks. A block as large as that gradient keeps this small beside the products, and memory
    less than doubles; a smaller one saves nothing that counts, hence the least size.
    """
    most = max(LOGIT_BLOCK_BYTES, 4 * vocab_size * hidden)
    fitting = max(1, most // (4 * vocab_size))
    return tokens if tokens <= fitting else 1 << (fitting.bit_length() - 1)


class ModelSpec(Protocol):
    """What `plan.py` asks of every family."""

    type: str

    @property
    def key_width(self) -> int:
        """Width of one attention head."""

    @property
    def special_attention(self) -> str | None:
        """What of its attention no flash attention has, in the plural; None where any will do."""

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        """Parameters by part; their sum is the size of the real pytree."""

    def matmul_parameters(self, *, vocab_size: int) -> int:
        """Parameters that every token is multiplied with: embeddings looked up by index do not count."""

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        """Forward FLOPs of scores and weighted sums for one token, averaged over causal positions."""

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        """Estimated numbers kept per token for the backward pass; `auto` is taken for `none`.

        With `flash`, attention keeps no probabilities.
        """


class Gpt2(Pretrained):
    """GPT-2 (Radford et al. 2019): learned positions, layer norm before each sub-layer, tanh-GELU, tied embeddings."""

    type: Literal["gpt2"] = "gpt2"
    layers: Count
    """Number of transformer blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Attention heads; must divide `hidden`."""
    intermediate: Count | None = None
    """Width inside the MLP; 4 x hidden where not given."""
    context_length: Count | None = None
    """Number of learned positions; `data.sequence_length` where not given."""
    tied: bool = True
    """Whether the output matrix is the token embedding."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Gpt2:
        check_heads(self.heads, self.hidden)
        return self

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads

    @property
    def special_attention(self) -> str | None:
        return None

    @property
    def mlp_width(self) -> int:
        return self.intermediate or 4 * self.hidden

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        d, f = self.hidden, self.mlp_width
        attention = (d * 3 * d + 3 * d) + (d * d + d)
        mlp = (d * f + f) + (f * d + d)
        norms = 2 * 2 * d
        parts = {
            "token_embedding": vocab_size * d,
            "position_embedding": (self.context_length or sequence_length) * d,
            "blocks": self.layers * (attention + mlp + norms),
            "final_norm": 2 * d,
        }
        if not self.tied:
            parts["output"] = vocab_size * d
        return parts

    def matmul_parameters(self, *, vocab_size: int) -> int:
        d, f = self.hidden, self.mlp_width
        return self.layers * (4 * d * d + 2 * d * f) + vocab_size * d

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x hidden FLOPs with each of (T + 1) / 2 visible positions, in every layer
        return self.layers * 2 * 2 * self.hidden * (sequence_length + 1) // 2

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d = self.hidden
        probabilities = 0 if flash else self.heads * sequence_length
        # two norms and what they scaled, q, k, v, attention output in two shapes; GELU and its slope
        everything = 9 * d + 2 * self.mlp_width + probabilities
        # residual, q, k, v, what attention and MLP add to it, MLP before GELU
        dots = 6 * d + self.mlp_width
        return kept(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)


Model = Annotated[
    Annotated[Gpt2, Tag("gpt2")]
    | Annotated[Mpt, Tag("mpt")]
    | Annotated[Llama, Tag("llama")]
    | Annotated[Mistral, Tag("mistral")]
    | Annotated[Qwen2, Tag("qwen2")]
    | Annotated[Qwen3, Tag("qwen3")]
    | Annotated[Olmo2, Tag("olmo2")]
    | Annotated[Gemma2, Tag("gemma2")]
    | Annotated[Gemma3, Tag("gemma3")]
    | Annotated[Mixtral, Tag("mixtral")]
    | Annotated[Qwen3Moe, Tag("qwen3-moe")],
    by_type("gpt2"),
]
