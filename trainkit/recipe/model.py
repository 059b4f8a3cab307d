"""[model]: the families, with their closed-form sizes.

What can be computed about a model without building it is computed here, so that a plan needs no jax.
Each family answers the same four questions (`ModelSpec`).
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from pydantic import Tag, model_validator

from trainkit.recipe.spec import Count, Positive, Spec, by_type
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
        _check_heads(self.heads, self.hidden)
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

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d = self.hidden
        probabilities = 0 if flash else self.heads * sequence_length
        # two norms and what they scaled, q, k, v, attention output in two shapes; GELU and its slope
        everything = 9 * d + 2 * self.mlp_width + probabilities
        # residual, q, k, v, what attention and MLP add to it, MLP before GELU
        dots = 6 * d + self.mlp_width
        return _kept(self, everything, dots, remat)


class Llama(Spec):
    """Llama (Touvron et al. 2023): rotary positions, root-mean-square norms, gated SiLU, no biases, grouped queries."""

    type: Literal["llama"] = "llama"
    layers: Count
    """Number of transformer blocks."""
    hidden: Count
    """Width of the residual stream."""
    heads: Count
    """Attention heads; must divide `hidden`."""
    kv_heads: Count | None = None
    """Heads of keys and values, each shared by as many query heads (Ainslie et al. 2023); `heads` where not given."""
    intermediate: Count
    """Width inside the MLP."""
    context_length: Count | None = None
    """The longest text that it is meant for; `data.sequence_length` where not given."""
    tied: bool = False
    """Whether the output matrix is the token embedding."""
    rope_theta: Positive = 10000.0
    """Base of the rotary positions' wave lengths."""
    rms_norm_eps: Positive = 1e-5
    """Added to the mean square in the norms."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Llama:
        _check_heads(self.heads, self.hidden)
        if self.head_width % 2:
            raise ValueError(
                f"hidden = {self.hidden} over heads = {self.heads} makes heads of {self.head_width}:"
                " rotary positions need an even width"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}; the nearest that do: "
                + _nearest_divisors(self.heads, self.groups)
            )
        return self

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of all keys, or all values, of a position."""
        return self.groups * self.head_width

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
        # as in GPT-2: that keys and values are shared saves memory, not products
        return self.layers * 2 * 2 * self.hidden * (sequence_length + 1) // 2

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d, f, kv = self.hidden, self.intermediate, self.kv_width
        probabilities = 0 if flash else self.heads * sequence_length
        # two norms and what they scaled, q, attention output in two shapes; k, v; gate, up and their product
        everything = 7 * d + 2 * kv + 3 * f + probabilities
        # residual, q, what attention and MLP add to it; k, v; gate, up
        dots = 4 * d + 2 * kv + 2 * f
        return _kept(self, everything, dots, remat)

    def _matrices(self) -> int:
        """Numbers in the matrices of one block."""
        d = self.hidden
        return 2 * d * d + 2 * d * self.kv_width + 3 * d * self.intermediate


Model = Annotated[Annotated[Gpt2, Tag("gpt2")] | Annotated[Llama, Tag("llama")], by_type("gpt2")]


def _kept(model: Gpt2 | Llama, everything: int, dots: int, remat: Remat | Literal["auto"]) -> int:
    """Numbers kept per token for the backward pass: for each block, and once what one block has when run again.

    The last hidden state has a gradient of its own by then: see `models/loss.py`. Its logits are not of this kind.
    """
    by_policy = {"auto": everything, "none": everything, "dots": dots, "blocks": model.hidden, "offload": 0}
    again = everything if remat in ("blocks", "dots", "offload") else 0
    return model.layers * by_policy[remat] + again + 2 * model.hidden


def _check_heads(heads: int, hidden: int) -> None:
    if hidden % heads:
        nearest = _nearest_divisors(hidden, heads)
        raise ValueError(f"heads = {heads} does not divide hidden = {hidden}; the nearest that do: {nearest}")


def _nearest_divisors(of: int, near: int) -> str:
    fits = [n for n in range(1, of + 1) if of % n == 0]
    return ", ".join(map(str, sorted(sorted(fits, key=lambda n: abs(n - near))[:3])))
