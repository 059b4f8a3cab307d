"""Llama's checkpoints (1, 2 and 3; SmolLM) and Mistral's."""

from trainkit.hub.config import Family
from trainkit.hub.families import decoder
from trainkit.hub.families.decoder import (
    ATTENTION,
    DEFAULTS,
    HEAD_WIDTH,
    KEYS,
    KV_HEADS,
    MLP,
    NOISE,
    NORMS_BEFORE,
    OUTER,
    ROPE,
    SILU,
)
from trainkit.recipe.families.rotary import Llama, Mistral

NAMES = (*OUTER, *ATTENTION, *MLP, *NORMS_BEFORE)

LLAMA = Family(
    spec=Llama,
    model_type="llama",
    architecture="LlamaForCausalLM",
    keys={**KEYS, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"},
    defaults={**DEFAULTS, "max_position_embeddings": 2048},
    fixed=SILU,
    noise=NOISE,
    parts=(ROPE, KV_HEADS, HEAD_WIDTH),
    names=NAMES,
    ignored=decoder.IGNORED,
)

MISTRAL = Family(
    spec=Mistral,
    model_type="mistral",
    architecture="MistralForCausalLM",
    keys=KEYS,
    defaults={**DEFAULTS, "max_position_embeddings": 131_072, "sliding_window": 4096, "num_key_value_heads": 8},
    fixed=SILU,
    noise=NOISE,
    parts=(ROPE, KV_HEADS, HEAD_WIDTH, decoder.WINDOW),
    names=NAMES,
    ignored=decoder.IGNORED,
)
