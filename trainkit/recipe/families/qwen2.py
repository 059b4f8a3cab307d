"""Qwen2 and Qwen2.5 (Yang et al. 2024)."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Dense, LateWindowed, Matrix
from trainkit.recipe.families.hugging_face import Family, scoring_heads
from trainkit.recipe.spec import NormEps, Theta


class Qwen2(LateWindowed, Dense):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with a bias on queries, keys and values."""

    type: Literal["qwen2"] = "qwen2"
    rope_theta: Theta = 1_000_000.0
    rms_norm_eps: NormEps = 1e-6

    @property
    def biased(self) -> tuple[Matrix, ...]:
        return ("query", "key", "value")


FAMILY = Family(
    spec=Qwen2,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    heads=scoring_heads("Qwen2ForSequenceClassification"),
    keys=shared.KEYS,
    defaults={**shared.DEFAULTS, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
    fixed=shared.SILU,
    parts=(shared.ROPE, shared.KV_HEADS, shared.HEAD_WIDTH, shared.LATE_WINDOW),
    names=(*shared.OUTER, *shared.ATTENTION, *shared.MLP, *shared.NORMS_BEFORE),
)
