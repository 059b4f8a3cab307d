"""OLMo 2 (OLMo team 2024)."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainkit.recipe.families import decoder_checkpoints as shared
from trainkit.recipe.families.decoder import Biased, Dense
from trainkit.recipe.families.hugging_face import Family, norm_names, scoring_heads
from trainkit.recipe.spec import NormEps, Theta


class Olmo2(Biased, Dense):
    """OLMo 2 (OLMo team 2024): norms after attention and MLP instead of before, and on all queries and keys at once."""

    type: Literal["olmo2"] = "olmo2"
    rope_theta: Theta = 500_000.0
    rms_norm_eps: NormEps = 1e-6

    norms: ClassVar[Literal["before", "after", "around"]] = "after"
    qk_norm: ClassVar[Literal["head", "width"] | None] = "width"


FAMILY = Family(
    spec=Olmo2,
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    heads=scoring_heads("Olmo2ForSequenceClassification"),
    keys={**shared.KEYS, "attention_bias": "attention_bias"},
    defaults={**shared.DEFAULTS, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "pad_token_id": 1},
    fixed=shared.SILU,
    parts=(shared.ROPE, shared.KV_HEADS, shared.HEAD_WIDTH),
    names=(
        *shared.OUTER,
        *shared.ATTENTION,
        *shared.QK_NORM,
        *shared.MLP,
        *norm_names("blocks.attention_post_norm", f"{shared.BLOCK}.post_attention_layernorm"),
        *norm_names("blocks.mlp_post_norm", f"{shared.BLOCK}.post_feedforward_layernorm"),
    ),
)
