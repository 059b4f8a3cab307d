"""OLMo 2's checkpoints: norms after attention and MLP."""

from trainkit.hub.config import Family
from trainkit.hub.families.decoder import (
    ATTENTION,
    BLOCK,
    DEFAULTS,
    HEAD_WIDTH,
    KEYS,
    KV_HEADS,
    MLP,
    NOISE,
    OUTER,
    QK_NORM,
    ROPE,
    SILU,
)
from trainkit.hub.names import norm
from trainkit.recipe.families.rotary import Olmo2

OLMO2 = Family(
    spec=Olmo2,
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    keys={**KEYS, "attention_bias": "attention_bias"},
    defaults={**DEFAULTS, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "pad_token_id": 1},
    fixed=SILU,
    noise=NOISE,
    parts=(ROPE, KV_HEADS, HEAD_WIDTH),
    names=(
        *OUTER,
        *ATTENTION,
        *QK_NORM,
        *MLP,
        *norm("blocks.attention_post_norm", f"{BLOCK}.post_attention_layernorm"),
        *norm("blocks.mlp_post_norm", f"{BLOCK}.post_feedforward_layernorm"),
    ),
)
