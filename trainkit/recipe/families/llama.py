"""Llama 1, 2 and 3 (Touvron et al. 2023); SmolLM is one too."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import MLP, Biased, Dense, Matrix, Multiple
from trainkit.recipe.families.hugging_face import Family, scoring_heads


class Llama(Multiple, Biased, Dense):
    """Llama (Touvron et al. 2023): rotary positions, root-mean-square norms, gated SiLU, no biases, grouped queries."""

    type: Literal["llama"] = "llama"
    mlp_bias: bool = False
    """Whether the matrices of the MLP have a bias."""

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return super().biased + (MLP if self.mlp_bias else ())


FAMILY = Family(
    spec=Llama,
    model_type="llama",
    architecture="LlamaForCausalLM",
    heads=scoring_heads("LlamaForSequenceClassification"),
    keys={**shared.KEYS, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"},
    defaults={**shared.DEFAULTS, "max_position_embeddings": 2048},
    fixed=shared.SILU,
    parts=(shared.ROPE, shared.KV_HEADS, shared.HEAD_WIDTH),
    names=(*shared.OUTER, *shared.ATTENTION, *shared.MLP, *shared.NORMS_BEFORE),
    ignored=shared.IGNORED,
)
