"""Qwen3 (Yang et al. 2025), its dense models."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Biased, Dense, LateWindowed
from trainkit.recipe.families.hugging_face import Family, scoring_heads
from trainkit.recipe.spec import NormEps, Theta


class Qwen3(LateWindowed, Biased, Dense):
    """Qwen3 (Yang et al. 2025): Llama with a norm on each head's queries and keys."""

    type: Literal["qwen3"] = "qwen3"
    rope_theta: Theta = 1_000_000.0
    rms_norm_eps: NormEps = 1e-6

    qk_norm: ClassVar[Literal["head", "width"] | None] = "head"


FAMILY = Family(
    spec=Qwen3,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    heads=scoring_heads("Qwen3ForSequenceClassification"),
    keys={**shared.KEYS, "attention_bias": "attention_bias"},
    defaults={**shared.DEFAULTS, "max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
    fixed=shared.SILU,
    parts=(shared.ROPE, shared.KV_HEADS, shared.ALWAYS_HEAD_WIDTH, shared.LATE_WINDOW),
    names=(*shared.OUTER, *shared.ATTENTION, *shared.QK_NORM, *shared.MLP, *shared.NORMS_BEFORE),
)
