"""[model]: the families, with their closed-form sizes.

What can be computed about a model without building it is computed here, so that a plan needs no jax.
Each family answers the same four questions (`ModelSpec`).
"""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import model_validator

from trainkit.recipe.spec import Count, Spec


class ModelSpec(Protocol):
    """What `plan.py` asks of every family."""

    type: str

    def parameter_count(self, *, vocab_size: int, sequence_length: int) -> dict[str, int]:
        """Parameters by part; their sum is the size of the real pytree."""

    def matmul_parameters(self, *, vocab_size: int) -> int:
        """Parameters that every token is multiplied with: embeddings looked up by index do not count."""

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        """Forward FLOPs of scores and weighted sums for one token, averaged over causal positions."""

    def activation_floats_per_token(self, *, vocab_size: int, sequence_length: int) -> int:
        """Estimated numbers kept per token for the backward pass."""


class Gpt2(Spec):
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
        if self.hidden % self.heads:
            fits = [h for h in range(1, self.hidden + 1) if self.hidden % h == 0]
            nearest = sorted(sorted(fits, key=lambda h: abs(h - self.heads))[:3])
            raise ValueError(
                f"heads = {self.heads} does not divide hidden = {self.hidden}; the nearest that do: "
                + ", ".join(map(str, nearest))
            )
        return self

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

    def activation_floats_per_token(self, *, vocab_size: int, sequence_length: int) -> int:
        # residual, two norms, q, k, v, attention output, MLP before and after GELU; attention probabilities; logits
        block = 8 * self.hidden + 2 * self.mlp_width + self.heads * sequence_length
        return self.layers * block + 2 * vocab_size


Model = Gpt2
