"""Qwen2's checkpoints (2.5 are of the same family) and Qwen3's."""

from __future__ import annotations

from typing import Any

from trainkit.hub.config import Config, Family, Part, Unsupported, layer_types, whole
from trainkit.hub.families.decoder import (
    ALWAYS_HEAD_WIDTH,
    ATTENTION,
    DEFAULTS,
    HEAD_WIDTH,
    KEYS,
    KV_HEADS,
    MLP,
    NOISE,
    NORMS_BEFORE,
    OUTER,
    QK_NORM,
    ROPE,
    SILU,
)
from trainkit.recipe.families.rotary import Qwen2, Qwen3


def _read_window(config: Config) -> dict[str, Any]:
    """The first `max_window_layers` layers have no window, and none has where `use_sliding_window` is false."""
    first, window = whole(config, "max_window_layers", 28, least=0), config.get("sliding_window", 4096)
    on = config.get("use_sliding_window", False) and window is not None
    on = on and first < whole(config, "num_hidden_layers", first + 1)
    types = layer_types(config) or []
    if types != ["sliding_attention" if on and i >= first else "full_attention" for i in range(len(types))]:
        raise Unsupported("layer_types", types, "they are not what max_window_layers says")
    return {"window": window, "layers_without_window": first} if on else {"window": None}


def _write_window(values: dict[str, Any]) -> Config:
    window = values["window"]
    first = values["layers_without_window"] if window else values["layers"]
    return {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": first}


WINDOW = Part(("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"), _read_window, _write_window)

QWEN2 = Family(
    spec=Qwen2,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=KEYS,
    defaults={**DEFAULTS, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
    fixed=SILU,
    noise=NOISE,
    parts=(ROPE, KV_HEADS, HEAD_WIDTH, WINDOW),
    names=(*OUTER, *ATTENTION, *MLP, *NORMS_BEFORE),
)

QWEN3 = Family(
    spec=Qwen3,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    keys={**KEYS, "attention_bias": "attention_bias"},
    defaults={**DEFAULTS, "max_position_embeddings": 32_768, "num_key_value_heads": 32, "head_dim": 128},
    fixed=SILU,
    noise=NOISE,
    parts=(ROPE, KV_HEADS, ALWAYS_HEAD_WIDTH, WINDOW),
    names=(*OUTER, *ATTENTION, *QK_NORM, *MLP, *NORMS_BEFORE),
)
