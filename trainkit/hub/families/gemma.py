"""Gemma 2's checkpoints, and those of Gemma 3 that read text alone. Their norms' weights are kept as they are."""

from __future__ import annotations

from typing import Any

from trainkit.hub.config import Config, Family, Part, Unsupported, layer_types, table, whole
from trainkit.hub.families.decoder import (
    ALWAYS_HEAD_WIDTH,
    ATTENTION,
    BLOCK,
    KEYS,
    KV_HEADS,
    MLP,
    NOISE,
    OUTER,
    QK_NORM,
    ROPE,
    read_rope,
    written_scaling,
)
from trainkit.hub.names import norm
from trainkit.recipe.families.rotary import Gemma2, Gemma3

DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "pad_token_id": 0,
}
FIXED = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "hidden_act": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
}
GEMMA_KEYS = {
    **KEYS,
    "attention_bias": "attention_bias",
    "sliding_window": "window",
    "query_pre_attn_scalar": "query_scale",
}
NAMES = (
    *OUTER,
    *ATTENTION,
    *MLP,
    *norm("blocks.attention_norm", f"{BLOCK}.input_layernorm"),
    *norm("blocks.attention_post_norm", f"{BLOCK}.post_attention_layernorm"),
    *norm("blocks.mlp_norm", f"{BLOCK}.pre_feedforward_layernorm"),
    *norm("blocks.mlp_post_norm", f"{BLOCK}.post_feedforward_layernorm"),
)


def _kinds(pattern: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]


def _pattern(usual: int) -> Part:
    """Each how many layers one is global: by a list of all layers, or by a number."""

    def read(config: Config) -> dict[str, Any]:
        number = whole(config, "sliding_window_pattern", whole(config, "_sliding_window_pattern", usual))
        kinds = layer_types(config)
        if kinds is not None and "full_attention" in kinds:
            number = kinds.index("full_attention") + 1
        if kinds is not None and kinds != _kinds(number, len(kinds)):
            raise Unsupported("layer_types", kinds, "global layers must follow each other at equal distances")
        return {"pattern": number}

    def write(values: dict[str, Any]) -> Config:
        kinds = _kinds(values["pattern"], values["layers"])
        return {"layer_types": kinds, **({"sliding_window_pattern": values["pattern"]} if usual != 2 else {})}

    return Part(("layer_types", "sliding_window_pattern", "_sliding_window_pattern"), read, write)


def _read_ropes(config: Config) -> dict[str, Any]:
    """Local layers have wave lengths of their own, and no scaling."""
    local = {"rope_theta": config.get("rope_local_base_freq")}
    if both := table(config, "rope_parameters"):
        if unknown := sorted(both.keys() - {"full_attention", "sliding_attention"}):
            raise Unsupported(f"rope_parameters.{unknown[0]}", both[unknown[0]], "it must be of one kind of layers")
        local["rope_parameters"] = both.get("sliding_attention")
        config = {**config, "rope_parameters": both.get("full_attention")}
    found = read_rope(local)
    if found["rope_scaling"] is not None:
        raise Unsupported("rope_parameters.sliding_attention", both["sliding_attention"], "only default can be had")
    return {**read_rope(config), "local_theta": found["rope_theta"]}


def _write_ropes(values: dict[str, Any]) -> Config:
    return {
        "rope_theta": values["rope_theta"],
        "rope_local_base_freq": values["local_theta"],
        "rope_scaling": written_scaling(values["rope_scaling"]),
    }


ROPES = Part(("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"), _read_ropes, _write_ropes)


def _query_scale(values: dict[str, Any]) -> Config:
    scale = values["query_scale"] or values["head_width"] or values["hidden"] // values["heads"]
    return {"query_pre_attn_scalar": int(scale)}


#: Always written, as their library has a number of its own for it.
QUERY_SCALE = Part((), lambda config: {}, _query_scale)


def _softcap(theirs: str, ours: str, usual: float | None) -> Part:
    """Null is none; absent, it is the family's own."""
    return Part(
        (theirs,),
        lambda config: {ours: config.get(theirs, usual) or False},
        lambda values: {theirs: values[ours] or None},
    )


GEMMA2 = Family(
    spec=Gemma2,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    keys=GEMMA_KEYS,
    defaults={**DEFAULTS, "max_position_embeddings": 8192, "rope_theta": 10000.0},
    fixed=FIXED,
    noise=NOISE,
    parts=(
        ROPE,
        KV_HEADS,
        ALWAYS_HEAD_WIDTH,
        QUERY_SCALE,
        _softcap("attn_logit_softcapping", "attention_softcap", 50.0),
        _softcap("final_logit_softcapping", "final_softcap", 30.0),
        _pattern(2),
    ),
    names=NAMES,
)

GEMMA3 = Family(
    spec=Gemma3,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys=GEMMA_KEYS,
    defaults={
        **DEFAULTS,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10000.0,
    },
    fixed={**FIXED, "attn_logit_softcapping": (None,)},
    noise=NOISE,
    base="Gemma3TextModel",
    parts=(
        ROPES,
        KV_HEADS,
        ALWAYS_HEAD_WIDTH,
        QUERY_SCALE,
        _softcap("final_logit_softcapping", "final_softcap", None),
        _pattern(6),
    ),
    names=(*NAMES, *QK_NORM),
)
