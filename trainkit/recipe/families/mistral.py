"""Mistral (Jiang et al. 2023)."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Dense, Windowed
from trainkit.recipe.families.hugging_face import Family, scoring_heads


class Mistral(Windowed, Dense):
    """Mistral (Jiang et al. 2023): Llama whose attention looks back over a window."""

    type: Literal["mistral"] = "mistral"


FAMILY = Family(
    spec=Mistral,
    model_type="mistral",
    architecture="MistralForCausalLM",
    heads=scoring_heads("MistralForSequenceClassification"),
    keys=shared.KEYS,
    defaults={**shared.DEFAULTS, "max_position_embeddings": 131_072, "sliding_window": 4096, "num_key_value_heads": 8},
    fixed=shared.SILU,
    parts=(shared.ROPE, shared.KV_HEADS, shared.HEAD_WIDTH, shared.WINDOW),
    names=(*shared.OUTER, *shared.ATTENTION, *shared.MLP, *shared.NORMS_BEFORE),
    ignored=shared.IGNORED,
)
