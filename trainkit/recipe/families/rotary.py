"""[model]: the families of rotary decoders, each in what it has of its own. Named as their checkpoints are.

The order of norms, biases and defaults is that of the checkpoints on the Hugging Face hub.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from trainkit.recipe.families.decoder import Decoder, Dense, Matrix, Sparse
from trainkit.recipe.families.rope import Rope
from trainkit.recipe.spec import Count, Positive

ATTENTION: tuple[Matrix, ...] = ("query", "key", "value", "output")
MLP: tuple[Matrix, ...] = ("gate", "up", "down")


class Biased(Decoder):
    """One whose attention may have biases."""

    attention_bias: bool = False
    """Whether queries, keys, values and attention's output have a bias."""

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return ATTENTION if self.attention_bias else ()


class Windowed(Decoder):
    """One whose attention may look back over a window only."""

    window: Count | None = None
    """How many positions attention looks back over, its own included; over all where not given."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (self.window,) * self.layers


class LateWindowed(Windowed):
    """One whose first layers may do without the window."""

    layers_without_window: Annotated[int, Field(ge=0)] = 0
    """So many layers, the first ones, look back over all."""

    @model_validator(mode="after")
    def _some_layers_have_the_window(self) -> LateWindowed:
        first = self.layers_without_window
        if first and self.window is None:
            raise ValueError(f"layers_without_window = {first} goes with a window: window = 4096, or leave it out")
        if first >= self.layers:
            raise ValueError(
                f"layers_without_window = {first} leaves the window to none of the layers = {self.layers}:"
                " make it smaller, or leave out both it and window"
            )
        return self

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(None if i < self.layers_without_window else self.window for i in range(self.layers))


class Multiple(Decoder):
    """One that transformers loads only where `hidden` is a multiple of `heads`."""

    @property
    def not_in_transformers(self) -> str | None:
        if self.hidden % self.heads == 0:
            return None
        return f"hidden = {self.hidden} with heads = {self.heads}: transformers takes multiples of heads only"


class Llama(Multiple, Biased, Dense):
    """Llama (Touvron et al. 2023): rotary positions, root-mean-square norms, gated SiLU, no biases, grouped queries."""

    type: Literal["llama"] = "llama"
    mlp_bias: bool = False
    """Whether the matrices of the MLP have a bias."""

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return super().biased + (MLP if self.mlp_bias else ())


class Mistral(Windowed, Dense):
    """Mistral (Jiang et al. 2023): Llama whose attention looks back over a window."""

    type: Literal["mistral"] = "mistral"


class Qwen2(LateWindowed, Dense):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with a bias on queries, keys and values."""

    type: Literal["qwen2"] = "qwen2"
    rope_theta: Positive = 1_000_000.0
    rms_norm_eps: Positive = 1e-6

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return ("query", "key", "value")


class Qwen3(LateWindowed, Biased, Dense):
    """Qwen3 (Yang et al. 2025): Llama with a norm on each head's queries and keys."""

    type: Literal["qwen3"] = "qwen3"
    rope_theta: Positive = 1_000_000.0
    rms_norm_eps: Positive = 1e-6

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"


class Olmo2(Biased, Dense):
    """OLMo 2 (OLMo team 2024): norms after attention and MLP instead of before, and on all queries and keys at once."""

    type: Literal["olmo2"] = "olmo2"
    rope_theta: Positive = 500_000.0
    rms_norm_eps: Positive = 1e-6

    norms: ClassVar[Literal["before", "after", "around"]] = "after"
    qk_norm: ClassVar[Literal["head", "width"] | None] = "width"


class Gemma(Multiple, Biased, Dense):
    """What Gemma 2 and Gemma 3 share: norms around, gated GELU, scaled embeddings, local layers and global ones."""

    tied: bool = True
    rms_norm_eps: Positive = 1e-6
    window: Count = 4096
    """How many positions local layers look back over, their own included."""
    query_scale: Positive | None = None
    """Scores are divided by the root of this (`query_pre_attn_scalar`); the width of a head where not given."""
    final_softcap: Positive | Literal[False] = False
    """Logits are bent to stay below this: cap x tanh(logits / cap); `false` for not at all."""

    pattern: Count
    """Of so many layers the last is global, the others are local."""

    norms: ClassVar[Literal["before", "after", "around"]] = "around"
    norm_offset: ClassVar[float] = 1.0
    activation: ClassVar[Literal["silu", "gelu"]] = "gelu"
    scaled_embedding: ClassVar[bool] = True

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(self.window if (i + 1) % self.pattern else None for i in range(self.layers))

    @property
    def score_scale(self) -> float | None:
        return None if self.query_scale is None else float(self.query_scale**-0.5)

    @property
    def not_in_transformers(self) -> str | None:
        broken = self.query_scale is not None and self.query_scale != int(self.query_scale)
        whole = f"query_scale = {self.query_scale}: transformers takes whole numbers"
        return whole if broken else super().not_in_transformers

    @property
    def softcap_of_logits(self) -> float | None:
        return self.final_softcap or None


class Gemma2(Gemma):
    """Gemma 2 (Gemma team 2024): every other layer local, scores and logits capped."""

    type: Literal["gemma2"] = "gemma2"
    pattern: Count = 2
    attention_softcap: Positive | Literal[False] = 50.0
    """Scores are bent to stay below this: cap x tanh(scores / cap). It rules out flash attention;
    `false` for none."""
    final_softcap: Positive | Literal[False] = 30.0

    @property
    def softcap_of_scores(self) -> float | None:
        return self.attention_softcap or None


class Gemma3(Gemma):
    """Gemma 3 (Gemma team 2025), its text half: five local layers to a global one, normed queries and keys."""

    type: Literal["gemma3"] = "gemma3"
    rope_theta: Positive = 1_000_000.0
    local_theta: Positive = 10000.0
    """Base of the wave lengths of local layers, whose positions `rope_scaling` leaves alone."""
    pattern: Count = 6

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"

    @property
    def ropes(self) -> tuple[Rope, ...]:
        local, whole = Rope(self.local_theta, None), Rope(self.rope_theta, self.rope_scaling)
        return tuple(whole if window is None else local for window in self.windows)


class Mixtral(Windowed, Sparse):
    """Mixtral (Jiang et al. 2024): Mistral with experts, a softmax over those that a token goes through."""

    type: Literal["mixtral"] = "mixtral"
    rope_theta: Positive = 1_000_000.0
    intermediate: Count
    """Width inside an expert."""

    @property
    def mlp_width(self) -> int:
        return self.intermediate


class Qwen3Moe(Windowed, Biased, Sparse):
    """Qwen3's mixtures of experts (Yang et al. 2025)."""

    type: Literal["qwen3-moe"] = "qwen3-moe"
    rope_theta: Positive = 1_000_000.0
    rms_norm_eps: Positive = 1e-6
    experts_per_token: Count = 8
    moe_intermediate: Count
    """Width inside an expert."""
    normalise_top: bool = True
    """Whether the weights of a token's experts, a softmax over all experts, are made to add up to 1."""

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"

    @property
    def mlp_width(self) -> int:
        return self.moe_intermediate

    @property
    def normalised(self) -> bool:
        return self.normalise_top
