"""Gemma 2 (Gemma team 2024)."""

from __future__ import annotations

from typing import Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families import gemma
from trainkit.recipe.families.gemma import Gemma
from trainkit.recipe.families.hugging_face import Family, scoring_heads
from trainkit.recipe.spec import Count, Positive


class Gemma2(Gemma):
    """Gemma 2 (Gemma team 2024): every other layer local, scores and logits capped."""

    type: Literal["gemma2"] = "gemma2"
    pattern: Count = 2
    attention_softcap: Positive | Literal[False] = 50.0
    """Soft-cap of the scores: cap x tanh(scores / cap), which rules out flash attention; `false` for none."""
    final_softcap: Positive | Literal[False] = 30.0

    @property
    def softcap_of_scores(self) -> float | None:
        return self.attention_softcap or None


FAMILY = Family(
    spec=Gemma2,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    heads=scoring_heads("Gemma2ForSequenceClassification"),
    keys=gemma.KEYS,
    defaults={**gemma.DEFAULTS, "max_position_embeddings": 8192, "rope_theta": 10000.0},
    fixed=gemma.FIXED,
    parts=(
        shared.ROPE,
        shared.KV_HEADS,
        shared.ALWAYS_HEAD_WIDTH,
        gemma.QUERY_SCALE,
        gemma.softcap("attn_logit_softcapping", "attention_softcap", 50.0),
        gemma.softcap("final_logit_softcapping", "final_softcap", 30.0),
        gemma.pattern(2),
    ),
    names=gemma.NAMES,
)
