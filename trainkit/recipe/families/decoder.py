"""What the families of rotary decoders have in common. Each family is a file beside this one.

A family states what is its own with fields, with the class variables below them, and with the properties that it
overrides. The model that is built from it (`models/decoder.py`) reads the same attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from trainkit.recipe.families.model import HeadKind, HeadLayers
from trainkit.recipe.families.rope import Rope, RopeScaling
from trainkit.recipe.families.sizes import (
    Remat,
    Shape,
    check_groups,
    check_heads,
    kept_numbers,
    linear,
    norm,
    stack,
    visible,
)
from trainkit.recipe.families.transformer import DROPPED, Transformer
from trainkit.recipe.spec import Count, Index, NormEps, Rate, Theta, Width

Matrix = Literal["query", "key", "value", "output", "gate", "up", "down"]
ATTENTION: tuple[Matrix, ...] = ("query", "key", "value", "output")
MLP: tuple[Matrix, ...] = ("gate", "up", "down")


class Decoder(Transformer):
    """A decoder with rotary positions, root-mean-square norms, gated units and grouped queries."""

    heads: Width
    """Attention heads; must divide `hidden` where `head_width` is not given."""
    kv_heads: Width | None = None
    """Heads of keys and values, each shared by equally many query heads (Ainslie et al. 2023). If absent, `heads`."""
    head_width: Width | None = None
    """Width of one head. If absent, hidden / heads."""
    tied: bool = False
    rope_theta: Theta = 10000.0
    """Base of the rotary positions' wave lengths."""
    rope_scaling: RopeScaling | None = None
    """How rotary positions are stretched beyond the length of pretraining. If absent, they are not."""
    rms_norm_eps: NormEps = 1e-5
    """Added to the mean square in the norms."""
    attention_dropout: Rate = 0.0
    """Share of attention's probabilities that training drops. Above 0, attention computes all of them at once, without
    flash attention."""

    implementation: ClassVar[str] = "trainkit.models.decoder"
    class_heads: ClassVar[Mapping[HeadKind, HeadLayers]] = {"sequence": HeadLayers("last", bias=False)}

    norms: ClassVar[Literal["before", "after", "around"]] = "before"
    """Where in a block the norms of attention and MLP stand."""
    norm_offset: ClassVar[float] = 0.0
    """What is added to the weight of a norm."""
    qk_norm: ClassVar[Literal["head", "width"] | None] = None
    """Whether queries and keys are normed: each head, or all heads of a position at once."""
    activation: ClassVar[Literal["silu", "gelu"]] = "silu"
    """Of the gated unit; `gelu` is the approximation by a hyperbolic tangent."""
    scaled_embedding: ClassVar[bool] = False
    """Whether embeddings are multiplied by the square root of `hidden`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Decoder:
        if self.head_width is None:
            check_heads(self.heads, self.hidden)
        if self.key_width % 2:
            derived = f"hidden = {self.hidden} over heads = {self.heads} makes heads of {self.key_width}"
            width = f"head_width = {self.head_width}" if self.head_width else derived
            raise ValueError(f"{width}: rotary positions need an even width")
        check_groups(self.groups, self.heads)
        return self

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        return self.head_width or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Return the width of all queries of a position."""
        return self.heads * self.key_width

    @property
    def kv_width(self) -> int:
        """Return the width of all keys, or all values, of a position."""
        return self.groups * self.key_width

    @property
    def biased(self) -> tuple[Matrix, ...]:
        """Return the matrices that have a bias."""
        return ()

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return how many positions the attention of each layer sees, its own included; None for all earlier ones."""
        return (None,) * self.layers

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Return the rotary positions of each layer."""
        return (Rope(self.rope_theta, self.rope_scaling),) * self.layers

    @property
    def softcap_of_logits(self) -> float | None:
        """Return the bound of logits (Gemma 2); None without one."""
        return None

    @property
    def special_attention(self) -> str | None:
        return DROPPED if self.attention_dropout else None

    @property
    def own_kernel_attention(self) -> str | None:
        return None if self.softcap_of_scores is None else "capped scores"

    def leaf_shapes(self, *, vocab_size: int, sequence_length: int) -> dict[str, Shape]:
        d, q, kv = self.hidden, self.query_width, self.kv_width
        attention = {
            **linear("attention.query", d, q, bias="query" in self.biased),
            **linear("attention.key", d, kv, bias="key" in self.biased),
            **linear("attention.value", d, kv, bias="value" in self.biased),
            **linear("attention.output", q, d, bias="output" in self.biased),
        }
        if self.qk_norm is not None:
            widths = (self.key_width, self.key_width) if self.qk_norm == "head" else (q, kv)
            attention |= norm("attention.query_norm", widths[0]) | norm("attention.key_norm", widths[1])
        norms = {"before": ("norm",), "after": ("post_norm",), "around": ("norm", "post_norm")}[self.norms]
        outer = {f"{part}_{name}.weight": (d,) for part in ("attention", "mlp") for name in norms}
        output: dict[str, Shape] = {} if self.tied or not self.predicts_tokens else {"output": (vocab_size, d)}
        return {
            "token_embedding": (vocab_size, d),
            **stack(self.layers, attention | outer | self._mlp_shapes()),
            **norm("final_norm", d),
            **output,
            **self.head_shapes(),
        }

    def matmul_parameters(self, *, vocab_size: int) -> int:
        blocks = self.layers * (self._attention_matrices() + self._active_mlp_matrices())
        return blocks + self.head_matrices(vocab_size=vocab_size)

    def attention_flops_per_token(self, *, sequence_length: int) -> int:
        # two products of 2 x width FLOPs with each visible position: sharing keys saves memory, not products
        seen = sum(visible(sequence_length=sequence_length, window=window) for window in self.windows)
        return 2 * 2 * self.query_width * seen // sequence_length

    def activation_floats_per_token(
        self, *, sequence_length: int, remat: Remat | Literal["auto"], flash: bool = False
    ) -> int:
        d, q, kv = self.hidden, self.query_width, self.kv_width
        flash = flash and self.special_attention is None
        probabilities = 0 if flash else self.heads * sequence_length
        # two norms and what they scaled; q, attention output in two shapes; k, v
        everything = 4 * d + 3 * q + 2 * kv + self._mlp_floats() + probabilities
        everything += 2 * d * (self.norms == "around") + (q + kv) * (self.qk_norm is not None)
        # residual, what attention and MLP add to it, q, the result of a kernel; k, v
        dots = 3 * d + (1 + flash) * q + 2 * kv + self._mlp_dots()
        return kept_numbers(layers=self.layers, hidden=d, everything=everything, dots=dots, remat=remat)

    def _mlp_shapes(self) -> dict[str, Shape]:
        d, f = self.hidden, self.mlp_width
        widths = {"gate": (d, f), "up": (d, f), "down": (f, d)}
        leaves = (linear(f"mlp.{name}", *sizes, bias=name in self.biased) for name, sizes in widths.items())
        return {name: shape for leaf in leaves for name, shape in leaf.items()}

    def _attention_matrices(self) -> int:
        """Return the parameters in the matrices of one block's attention."""
        return 2 * self.hidden * self.query_width + 2 * self.hidden * self.kv_width

    def _mlp_matrices(self) -> int:
        return 3 * self.hidden * self.mlp_width

    def _active_mlp_matrices(self) -> int:
        """Return how many parameters of one block's MLP each token is multiplied with."""
        return self._mlp_matrices()

    def _mlp_floats(self) -> int:
        """Return the numbers per token kept of an MLP for the backward pass: gate, up, product, and GELU's slope."""
        return (4 if self.activation == "gelu" else 3) * self.mlp_width

    def _mlp_dots(self) -> int:
        return 2 * self.mlp_width


class Dense(Decoder):
    """A decoder in which every token goes through the same MLP."""

    intermediate: Width
    """Width inside the MLP."""

    @property
    def mlp_width(self) -> int:
        return self.intermediate


class Biased(Decoder):
    """A decoder whose attention may have biases."""

    attention_bias: bool = False
    """Whether queries, keys, values and attention's output have a bias."""

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return ATTENTION if self.attention_bias else ()


class Windowed(Decoder):
    """A decoder whose attention may be limited to a window."""

    window: Count | None = None
    """How many positions attention sees, its own included. If absent, all earlier ones."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (self.window,) * self.layers


class LateWindowed(Windowed):
    """A decoder whose first layers may have no window."""

    layers_without_window: Index = 0
    """Number of first layers whose attention sees all earlier positions."""

    @model_validator(mode="after")
    def _some_layers_have_the_window(self) -> LateWindowed:
        first = self.layers_without_window
        if first and self.window is None:
            raise ValueError(f"layers_without_window = {first} goes with a window: window = 4096, or leave it out")
        if first >= self.layers:
            raise ValueError(
                f"layers_without_window = {first} leaves no window to any of the layers = {self.layers}:"
                " make it smaller, or leave out both it and window"
            )
        return self

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(None if i < self.layers_without_window else self.window for i in range(self.layers))


class Multiple(Decoder):
    """A decoder that transformers loads only if `hidden` is a multiple of `heads`."""

    @property
    def not_in_transformers(self) -> str | None:
        reason = f"hidden = {self.hidden} with heads = {self.heads}: transformers supports only multiples of heads"
        return reason if self.hidden % self.heads else None
